#include "core/tasks/reward.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/names.h"
#include "core/tasks/grading.h"

namespace tidepool::tasks {
namespace {

Verdict Ok(double score, std::string detail = {}) {
  return {Verdict::Outcome::kOk, score, std::move(detail)};
}
Verdict BadData(std::string detail) { return {Verdict::Outcome::kData, 0, std::move(detail)}; }
Verdict NoAnswer() { return BadData("the row has no answer, and this reward compares with one"); }

std::optional<std::vector<int64_t>> Integers(const std::string& json_text) {
  const auto list = nlohmann::json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<int64_t> out;
  for (const auto& item : list) {
    if (!item.is_number_integer()) return std::nullopt;
    out.push_back(item.get<int64_t>());
  }
  return out;
}

std::optional<int64_t> Integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct CountdownRow {
  std::vector<int64_t> numbers;
  int64_t target = 0;
};
std::optional<CountdownRow> ReadCountdown(const RewardInput& input) {
  const auto numbers = input.fields.find("numbers");
  const auto target = input.fields.find("target");
  if (numbers == input.fields.end() || target == input.fields.end()) return std::nullopt;
  const auto list = Integers(numbers->second);
  const auto value = Integer(target->second);
  if (!list || !value) return std::nullopt;
  return CountdownRow{*list, *value};
}
constexpr const char* kCountdownFields =
    "the row needs fields numbers (a JSON list of integers) and target (an integer)";

// A compiled pattern with a bound on backtracking, so that no response can stall a grader.
class Pattern {
 public:
  static StatusOr<std::shared_ptr<const Pattern>> Compile(const std::string& text) {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_DOTALL | PCRE2_UTF, &error, &at, nullptr);
    if (code == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      return InvalidArgument("format: bad regular expression at character " + std::to_string(at) + ": " +
                             reinterpret_cast<const char*>(message.data()));
    }
    return std::shared_ptr<const Pattern>(new Pattern(code));
  }
  ~Pattern() {
    pcre2_match_context_free(context_);
    pcre2_code_free(code_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  [[nodiscard]] Verdict Match(std::string_view text) const {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    const int rc =
        pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data, context_);
    pcre2_match_data_free(data);
    if (rc >= 0) return Ok(1);
    // Text that is no UTF-8 does not have the format; a pattern that backtracks too long is a fault of the
    // config.
    if (rc == PCRE2_ERROR_NOMATCH || (rc <= PCRE2_ERROR_UTF8_ERR1 && rc >= PCRE2_ERROR_UTF8_ERR21))
      return Ok(0);
    return BadData("the format's regular expression gave up (PCRE2 error " + std::to_string(rc) + ")");
  }

 private:
  explicit Pattern(pcre2_code* code) : code_(code), context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context_, 1'000'000);
    pcre2_set_heap_limit(context_, 64 * 1024);  // KiB
  }
  pcre2_code* code_;
  pcre2_match_context* context_;
};

StatusOr<Reward> MakeFormat(const std::string& argument) {
  if (argument.empty()) return Reward([](const RewardInput& in) { return Ok(in.ended ? 1 : 0); });
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<const Pattern> pattern, Pattern::Compile(argument));
  return Reward([pattern](const RewardInput& in) { return pattern->Match(in.text); });
}

// Soft overlong penalty (DAPO, arXiv:2503.14476, eq. 13): 0 up to L - b tokens, then falling to -1 at L.
StatusOr<Reward> MakeLengthPenalty(const std::string& argument) {
  const std::optional<int64_t> given = argument.empty() ? std::optional<int64_t>(0) : Integer(argument);
  if (!given || (*given < 1 && !argument.empty())) {
    return InvalidArgument("length_penalty: expected a number of tokens after the colon; found '" + argument +
                           "'");
  }
  return Reward([given](const RewardInput& in) {
    if (in.max_new_tokens <= 0) return BadData("length_penalty needs max_new_tokens > 0");
    const int64_t buffer =
        std::min(*given > 0 ? *given : std::max<int64_t>(1, in.max_new_tokens / 4), in.max_new_tokens);
    const int64_t free = in.max_new_tokens - buffer;
    const double over = static_cast<double>(free - in.response_tokens) / static_cast<double>(buffer);
    return Ok(std::clamp(over, -1.0, 0.0));
  });
}

StatusOr<Reward> MakeContains(const std::string& argument) {
  return Reward([argument](const RewardInput& in) {
    const std::string_view wanted =
        argument.empty() ? std::string_view(in.answer) : std::string_view(argument);
    if (wanted.empty()) return NoAnswer();
    return Ok(in.text.find(wanted) != std::string::npos ? 1 : 0);
  });
}

StatusOr<Reward> MakeGsm8k(const std::string& argument) {
  if (!argument.empty() && argument != "strict" && argument != "flexible") {
    return InvalidArgument("gsm8k: expected gsm8k:strict or gsm8k:flexible; found '" + argument + "'");
  }
  const Gsm8kMethod method = argument == "flexible" ? Gsm8kMethod::kFlexible : Gsm8kMethod::kStrict;
  return Reward([method](const RewardInput& in) {
    return in.answer.empty() ? NoAnswer() : Ok(Gsm8kScore(in.text, Trim(in.answer), method));
  });
}

Verdict AnswerTag(const RewardInput& in) {
  if (in.answer.empty()) return NoAnswer();
  const auto given = ExtractAnswer(in.text);
  if (!given) return Ok(0, "no <answer> tag");
  return Ok(*given == Trim(in.answer) || DecimalsEqual(*given, in.answer) ? 1 : 0);
}

Verdict Decimal(const RewardInput& in) {
  if (in.answer.empty()) return NoAnswer();
  const auto tagged = ExtractAnswer(in.text);
  return Ok(DecimalScore(tagged ? *tagged : std::string(Trim(in.text)), in.answer));
}

Verdict Countdown(const RewardInput& in) {
  const auto row = ReadCountdown(in);
  return row ? Ok(CountdownScore(in.text, row->numbers, row->target, 1.0, 0.1)) : BadData(kCountdownFields);
}

// The answer is a JSON list in order; the response's list is in its last answer tag, or all of it.
std::optional<double> SortingRowScore(const RewardInput& in, double tolerance) {
  const auto direction = in.fields.find("direction");
  const auto list = nlohmann::json::parse(in.answer, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty() || direction == in.fields.end()) return std::nullopt;
  std::vector<double> expected;
  for (const auto& item : list) {
    if (!item.is_number()) return std::nullopt;
    expected.push_back(item.get<double>());
  }
  const auto tagged = ExtractAnswer(in.text);
  return SortingScore(
      tagged ? *tagged : std::string(Trim(in.text)), expected,
      direction->second == "descending" ? SortDirection::kDescending : SortDirection::kAscending, tolerance);
}
constexpr const char* kSortingFields =
    "the row needs an answer (a JSON list of numbers) and a field direction (ascending or descending)";

Verdict Sorting(const RewardInput& in) {
  const auto score = SortingRowScore(in, 1.0);
  return score ? Ok(*score) : BadData(kSortingFields);
}

// A reward without an argument.
template <Verdict (*score)(const RewardInput&)>
StatusOr<Reward> Plain(const std::string& /*argument*/) {
  return Reward(score);
}

struct RewardEntry {
  RewardInfo info;
  StatusOr<Reward> (*make)(const std::string& argument);
};

const std::vector<RewardEntry>& RewardEntries() {
  static const std::vector<RewardEntry> entries = {
      {{"exact_answer", "", "1 if the answer is right by the task's own rule, else 0"}, Plain<ExactAnswer>},
      {{"format", "regular expression",
        "1 if the response matches; without an argument, if it ended by itself"},
       MakeFormat},
      {{"length_penalty", "tokens",
        "0 down to -1 over the last tokens before the limit (DAPO eq. 13); default a quarter of it"},
       MakeLengthPenalty},
      {{"contains", "text", "1 if the response contains the text (default: the answer)"}, MakeContains},
      {{"gsm8k", "strict or flexible",
        "1 if the number after the last #### (flexible: the last number) is the answer"},
       MakeGsm8k},
      {{"answer_tag", "", "1 if the text of the last <answer> tag is the answer, as text or as a number"},
       Plain<AnswerTag>},
      {{"decimal", "", "1 if equal as decimals, a share if the answer is part of the response (chain sums)"},
       Plain<Decimal>},
      {{"countdown", "", "TinyZero's rule: 1 right, 0.1 an answer tag on the last line, 0 none"},
       Plain<Countdown>},
      {{"sorting", "",
        "reasoning-gym's rule: 1 for a JSON list of the right length, in order, each number within 1.0"},
       Plain<Sorting>},
  };
  return entries;
}

}  // namespace

Verdict ExactAnswer(const RewardInput& input) {
  const auto it = input.fields.find("answer_rule");
  std::string rule = it == input.fields.end() ? "" : it->second;
  if (rule == "countdown") {
    const auto row = ReadCountdown(input);
    if (!row) return BadData(kCountdownFields);
    if (!input.ended) return Ok(0, "cut at the limit");
    const auto tagged = ExtractAnswer(input.text);
    const double score = CountdownExpressionScore(tagged ? *tagged : std::string(Trim(input.text)),
                                                  row->numbers, static_cast<double>(row->target));
    return Ok(score == 1 ? 1 : 0);
  }
  if (rule == "sorting") {
    const auto score = SortingRowScore(input, 1e-9);
    if (!score) return BadData(kSortingFields);
    return input.ended ? Ok(*score) : Ok(0, "cut at the limit");
  }
  const std::string_view answer = Trim(input.answer);
  if (answer.empty()) return NoAnswer();
  if (rule.empty()) rule = DecimalsEqual(answer, answer) ? "last_number" : "text";
  if (rule == "gsm8k") return Ok(Gsm8kScore(input.text, answer, Gsm8kMethod::kStrict));
  if (rule == "answer_tag") return AnswerTag(input);
  if (rule != "last_number" && rule != "text") {
    return BadData("answer_rule is '" + rule +
                   "'; expected last_number, text, countdown, sorting, gsm8k or answer_tag");
  }
  if (!input.ended) return Ok(0, "cut at the limit");
  if (rule == "text") return Ok(Trim(input.text) == answer ? 1 : 0);
  const auto last = LastNumber(input.text);
  if (!last) return Ok(0, "no number");
  std::string wanted(answer);
  std::erase(wanted, ',');
  return Ok(DecimalsEqual(*last, wanted) ? 1 : 0);
}

const std::vector<RewardInfo>& ListRewards() {
  static const std::vector<RewardInfo> infos = [] {
    std::vector<RewardInfo> all;
    for (const RewardEntry& entry : RewardEntries()) all.push_back(entry.info);
    return all;
  }();
  return infos;
}

StatusOr<Reward> MakeReward(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string name(spec.substr(0, colon));
  const std::string argument(colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1));
  std::vector<std::string> names;
  for (const RewardEntry& entry : RewardEntries()) {
    names.push_back(entry.info.name);
    if (entry.info.name != name) continue;
    if (!argument.empty() && entry.info.argument.empty()) {
      return InvalidArgument(name + ": takes no argument; found '" + argument + "'");
    }
    return entry.make(argument);
  }
  return NotFound("no reward is named '" + name + "'; " + DidYouMean(name, names) +
                  " (a reward of your own needs an endpoint)");
}

}  // namespace tidepool::tasks
