#include "core/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/text/splitter.h"

namespace tidepool::text {
namespace {

SplitStep PatternStep(Pattern pattern) {
  return [pattern](std::string_view piece, Pieces* out) {
    SplitByPattern(pattern, piece, &out->views);
    return OkStatus();
  };
}

Status PrefixSpace(std::string_view piece, Pieces* out) {
  out->views.push_back(piece.starts_with(' ') ? piece : out->owned.emplace_back(" " + std::string(piece)));
  return OkStatus();
}

SplitStep LiteralStep(std::string literal, SplitBehavior behavior, bool invert) {
  return [=](std::string_view piece, Pieces* out) {
    std::vector<Match> matches;
    size_t at = 0;
    while (true) {
      const size_t found = piece.find(literal, at);
      const size_t end = found == std::string_view::npos ? piece.size() : found;
      if (end > at) matches.push_back({at, end, invert});
      if (found == std::string_view::npos) break;
      matches.push_back({found, found + literal.size(), !invert});
      at = found + literal.size();
    }
    ApplyBehavior(behavior, piece, matches, out);
    return OkStatus();
  };
}

bool Flag(const nlohmann::json& json, const char* key, bool fallback) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

StatusOr<SplitStep> MakeSplit(const nlohmann::json& json, const std::string& where) {
  const auto pattern = json.find("pattern");
  const auto behavior_name = json.find("behavior");
  if (pattern == json.end() || !pattern->is_object() || pattern->size() != 1 ||
      !pattern->begin()->is_string() || behavior_name == json.end() || !behavior_name->is_string()) {
    return InvalidArgument(where + ": pre_tokenizer Split needs a pattern (Regex or String) and a behavior");
  }
  const auto name = behavior_name->get<std::string>();
  const auto behavior = FromWord<SplitBehavior>(name);
  if (!behavior)
    return InvalidArgument(where + ": pre_tokenizer Split has the unknown behavior \"" + name + "\"");
  const bool invert = Flag(json, "invert", false);
  const auto text = pattern->begin()->get<std::string>();
  if (text.empty()) return InvalidArgument(where + ": pre_tokenizer Split has an empty pattern");
  if (pattern->begin().key() == "String") return LiteralStep(text, *behavior, invert);
  if (pattern->begin().key() != "Regex") {
    return InvalidArgument(where + ": pre_tokenizer Split has a pattern that is neither Regex nor String");
  }
  if (const std::optional<Pattern> known = KnownPattern(text)) {
    // The published patterns match everywhere, so that to keep matches and to isolate them is the same.
    if ((behavior == SplitBehavior::kIsolated) || (behavior == SplitBehavior::kRemoved && invert))
      return PatternStep(*known);
  }
  StatusOr<SplitStep> step = MakeRegexStep(text, *behavior, invert);
  if (!step.ok()) return step.status().At(where);
  return step;
}

}  // namespace

void ApplyBehavior(SplitBehavior behavior, std::string_view text, const std::vector<Match>& matches,
                   Pieces* out) {
  const auto emit = [&](size_t begin, size_t end) {
    if (end > begin) out->views.push_back(text.substr(begin, end - begin));
  };
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
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext:
      break;
  }
  // A match joins what is before or behind it, unless that is a match too; or runs of one kind join.
  size_t start = 0;  // of the piece being gathered
  for (size_t i = 1; i < matches.size(); ++i) {
    const bool match = matches[i].is_match, before = matches[i - 1].is_match;
    const bool joins = behavior == SplitBehavior::kContiguous           ? match == before
                       : behavior == SplitBehavior::kMergedWithPrevious ? match && !before
                                                                        : before && !match;
    if (joins) continue;
    emit(start, matches[i].begin);
    start = matches[i].begin;
  }
  emit(start, text.size());
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
    if (Flag(json, "add_prefix_space", true)) steps_.push_back(PrefixSpace);
    if (Flag(json, "use_regex", true)) steps_.push_back(PatternStep(Pattern::kGpt2));
    byte_level_ = true;
    return OkStatus();
  }
  if (type == "Digits") {
    steps_.push_back(
        [individual = Flag(json, "individual_digits", false)](std::string_view piece, Pieces* out) {
          SplitDigits(individual, piece, &out->views);
          return OkStatus();
        });
    return OkStatus();
  }
  if (type == "Split") {
    TP_ASSIGN_OR_RETURN(SplitStep step, MakeSplit(json, where));
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
    for (const std::string_view piece : *scratch) TP_RETURN_IF_ERROR(step(piece, pieces));
  }
  return OkStatus();
}

}  // namespace tidepool::text
