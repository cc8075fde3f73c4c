#include "core/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/text/splitter.h"

namespace tidepool::text {
namespace {

class PatternStep : public SplitStep {
 public:
  explicit PatternStep(Pattern pattern) : pattern_(pattern) {}
  Status Apply(std::string_view piece, Pieces* out) const override {
    SplitByPattern(pattern_, piece, &out->views);
    return OkStatus();
  }

 private:
  Pattern pattern_;
};

class DigitsStep : public SplitStep {
 public:
  explicit DigitsStep(bool individual) : individual_(individual) {}
  Status Apply(std::string_view piece, Pieces* out) const override {
    SplitDigits(individual_, piece, &out->views);
    return OkStatus();
  }

 private:
  bool individual_;
};

class PrefixSpaceStep : public SplitStep {
 public:
  Status Apply(std::string_view piece, Pieces* out) const override {
    if (piece.starts_with(' ')) {
      out->views.push_back(piece);
    } else {
      out->views.push_back(out->owned.emplace_back(" " + std::string(piece)));
    }
    return OkStatus();
  }
};

class LiteralStep : public SplitStep {
 public:
  LiteralStep(std::string literal, SplitBehavior behavior, bool invert)
      : literal_(std::move(literal)), behavior_(behavior), invert_(invert) {}
  Status Apply(std::string_view piece, Pieces* out) const override {
    std::vector<Match> matches;
    size_t at = 0;
    while (true) {
      const size_t found = piece.find(literal_, at);
      const size_t end = found == std::string_view::npos ? piece.size() : found;
      if (end > at) matches.push_back({at, end, invert_});
      if (found == std::string_view::npos) break;
      matches.push_back({found, found + literal_.size(), !invert_});
      at = found + literal_.size();
    }
    ApplyBehavior(behavior_, piece, matches, out);
    return OkStatus();
  }

 private:
  std::string literal_;
  SplitBehavior behavior_;
  bool invert_;
};

bool Flag(const nlohmann::json& json, const char* key, bool fallback) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

StatusOr<SplitBehavior> BehaviorOf(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return InvalidArgument(where + ": pre_tokenizer Split has the unknown behavior \"" + name + "\"");
}

StatusOr<std::unique_ptr<SplitStep>> MakeSplit(const nlohmann::json& json, const std::string& where) {
  const auto pattern = json.find("pattern");
  const auto behavior_name = json.find("behavior");
  if (pattern == json.end() || !pattern->is_object() || pattern->size() != 1 ||
      !pattern->begin()->is_string() || behavior_name == json.end() || !behavior_name->is_string()) {
    return InvalidArgument(where + ": pre_tokenizer Split needs a pattern (Regex or String) and a behavior");
  }
  TP_ASSIGN_OR_RETURN(const SplitBehavior behavior, BehaviorOf(behavior_name->get<std::string>(), where));
  const bool invert = Flag(json, "invert", false);
  const auto text = pattern->begin()->get<std::string>();
  if (text.empty()) return InvalidArgument(where + ": pre_tokenizer Split has an empty pattern");
  if (pattern->begin().key() == "String") {
    return std::unique_ptr<SplitStep>(std::make_unique<LiteralStep>(text, behavior, invert));
  }
  if (pattern->begin().key() != "Regex") {
    return InvalidArgument(where + ": pre_tokenizer Split has a pattern that is neither Regex nor String");
  }
  if (const std::optional<Pattern> known = KnownPattern(text)) {
    // The published patterns match everywhere, so that to keep matches and to isolate them is the same.
    if ((behavior == SplitBehavior::kIsolated) || (behavior == SplitBehavior::kRemoved && invert)) {
      return std::unique_ptr<SplitStep>(std::make_unique<PatternStep>(*known));
    }
  }
  StatusOr<std::unique_ptr<SplitStep>> step = MakeRegexStep(text, behavior, invert);
  if (!step.ok()) return step.status().At(where);
  return step;
}

}  // namespace

void ApplyBehavior(SplitBehavior behavior, std::string_view text, const std::vector<Match>& matches,
                   Pieces* out) {
  const auto emit = [&](size_t begin, size_t end) {
    if (end > begin) out->views.push_back(text.substr(begin, end - begin));
  };
  size_t start = 0;  // of the piece being gathered, for the behaviours that join
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Match& m : matches) emit(m.begin, m.end);
      return;
    case SplitBehavior::kRemoved:
      for (const Match& m : matches) {
        if (!m.is_match) emit(m.begin, m.end);
      }
      return;
    case SplitBehavior::kContiguous:
      for (size_t i = 0; i < matches.size(); ++i) {
        if (i > 0 && matches[i].is_match != matches[i - 1].is_match) {
          emit(start, matches[i].begin);
          start = matches[i].begin;
        }
      }
      emit(start, text.size());
      return;
    case SplitBehavior::kMergedWithPrevious:
      // A match joins what is before it, unless that was a match too.
      for (size_t i = 0; i < matches.size(); ++i) {
        const bool joins = matches[i].is_match && i > 0 && !matches[i - 1].is_match;
        if (!joins) {
          emit(start, matches[i].begin);
          start = matches[i].begin;
        }
      }
      emit(start, text.size());
      return;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i < matches.size(); ++i) {
        const bool joins = i > 0 && matches[i - 1].is_match && !matches[i].is_match;
        if (!joins) {
          emit(start, matches[i].begin);
          start = matches[i].begin;
        }
      }
      emit(start, text.size());
      return;
  }
}

StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromJson(const nlohmann::json& json,
                                                               const std::string& where) {
  auto result = std::unique_ptr<PreTokenizer>(new PreTokenizer());
  if (!json.is_null()) TP_RETURN_IF_ERROR(result->Add(json, where, 0));
  return result;
}

Status PreTokenizer::Add(const nlohmann::json& json, const std::string& where, int depth) {
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string() || depth > 8) {
    return InvalidArgument(where + ": pre_tokenizer is no object with a type, or is nested too deep");
  }
  const auto type = json["type"].get<std::string>();
  if (type == "Sequence") {
    const auto parts = json.find("pretokenizers");
    if (parts == json.end() || !parts->is_array()) {
      return InvalidArgument(where + ": pre_tokenizer Sequence has no array \"pretokenizers\"");
    }
    for (const nlohmann::json& part : *parts) TP_RETURN_IF_ERROR(Add(part, where, depth + 1));
    return OkStatus();
  }
  if (byte_level_) {
    return Unimplemented(where + ": pre_tokenizer " + type +
                         " follows ByteLevel; only the other order is supported");
  }
  if (type == "ByteLevel") {
    if (Flag(json, "add_prefix_space", true)) steps_.push_back(std::make_unique<PrefixSpaceStep>());
    if (Flag(json, "use_regex", true)) steps_.push_back(std::make_unique<PatternStep>(Pattern::kGpt2));
    byte_level_ = true;
    return OkStatus();
  }
  if (type == "Digits") {
    steps_.push_back(std::make_unique<DigitsStep>(Flag(json, "individual_digits", false)));
    return OkStatus();
  }
  if (type == "Split") {
    TP_ASSIGN_OR_RETURN(std::unique_ptr<SplitStep> step, MakeSplit(json, where));
    steps_.push_back(std::move(step));
    return OkStatus();
  }
  return Unimplemented(where + ": pre_tokenizer " + type +
                       "; ByteLevel, Digits, Split and Sequence are supported");
}

Status PreTokenizer::Split(std::string_view text, Pieces* pieces,
                           std::vector<std::string_view>* scratch) const {
  pieces->views.clear();
  pieces->owned.clear();
  if (text.empty()) return OkStatus();
  pieces->views.push_back(text);
  for (const auto& step : steps_) {
    std::swap(pieces->views, *scratch);
    pieces->views.clear();
    for (const std::string_view piece : *scratch) TP_RETURN_IF_ERROR(step->Apply(piece, pieces));
  }
  return OkStatus();
}

}  // namespace tidepool::text
