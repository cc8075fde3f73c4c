#pragma once
// The pre-tokeniser of a tokenizer.json: cuts normalised text into the words that merging sees.
//
// Known: ByteLevel (with GPT-2's pattern or without), Digits, Split (by a string, a published pattern
// or, through PCRE2 with limits, another regular expression), Sequence of these. ByteLevel has to come
// last, for what followed it would see symbols instead of text. Others are refused by name.

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::text {

// Words, as views of the text or, where a step changed one, of `owned`.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
};

// Appends the parts of `piece`, which is not empty. kResourceExhausted: a regular expression met its match
// limit.
using SplitStep = std::function<Status(std::string_view piece, Pieces* out)>;

// What Split does with the matches (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
constexpr auto WordsOf(SplitBehavior) {
  return std::to_array<const char*>(
      {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
}

struct Match {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;  // else the text between two matches
};
// Appends `text` cut by `matches`, which cover it in order.
void ApplyBehavior(SplitBehavior behavior, std::string_view text, const std::vector<Match>& matches,
                   Pieces* out);

// A regular expression outside the published ones. Syntax of the reference's engine (Oniguruma, Ruby)
// that means something else in PCRE2 is refused.
StatusOr<SplitStep> MakeRegexStep(const std::string& regex, SplitBehavior behavior, bool invert);

// Immutable; thread-safe.
class PreTokenizer {
 public:
  // `json`: the value of "pre_tokenizer", perhaps null. `where` opens each message.
  static StatusOr<std::unique_ptr<PreTokenizer>> FromJson(const nlohmann::json& json,
                                                          const std::string& where);

  // Words of `text` (valid UTF-8) replace the content of `pieces`; `scratch` is used inside.
  Status Split(std::string_view text, Pieces* pieces, std::vector<std::string_view>* scratch) const;
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  PreTokenizer() = default;
  Status Add(const nlohmann::json& json, const std::string& where, int depth);

  std::vector<SplitStep> steps_;
  bool byte_level_ = false;
};

}  // namespace tidepool::text
