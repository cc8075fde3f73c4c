// chain_sum: terms of one number of digits, joined by + and -. One stratum for each (terms, digits).
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

int64_t NumbersOf(int64_t digits) {
  return digits == 1 ? 10 : SaturatingPower(10, digits) - SaturatingPower(10, digits - 1);
}

StatusOr<std::vector<int64_t>> ChainSumStrata(const OptionValues& options) {
  std::vector<int64_t> strata;
  const auto [terms_lo, terms_hi] = options.Range("terms");
  const auto [digits_lo, digits_hi] = options.Range("digits");
  for (int64_t terms = terms_lo; terms <= terms_hi; ++terms) {
    for (int64_t digits = digits_lo; digits <= digits_hi; ++digits) {
      const int64_t signs = options.Bool("subtract") ? SaturatingPower(2, terms - 1) : 1;
      strata.push_back(SaturatingMultiply(SaturatingPower(NumbersOf(digits), terms), signs));
    }
  }
  return strata;
}

Question ChainSum(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed) {
  const auto [digits_lo, digits_hi] = options.Range("digits");
  const int64_t widths = digits_hi - digits_lo + 1;
  const int64_t terms = options.Range("terms").first + pick.stratum / widths;
  const int64_t digits = digits_lo + pick.stratum % widths;
  const int64_t first = digits == 1 ? 0 : SaturatingPower(10, digits - 1);
  const bool subtract = options.Bool("subtract"), terse = IsTerse(options);
  CodeReader code(pick, seed);
  int64_t sum = 0;
  std::string text;
  for (int64_t t = 0; t < terms; ++t) {
    const bool minus = subtract && t > 0 && code.Take(2) == 1;
    const int64_t value = first + code.Take(NumbersOf(digits));
    if (t > 0) text += terse ? (minus ? "-" : "+") : (minus ? " - " : " + ");
    text += std::to_string(value);
    sum += minus ? -value : value;
  }
  return NumberQuestion(terse ? text + "=" : "What is " + text + "? Reply with only the number.", sum);
}

}  // namespace

TP_PLUGIN(Task, chain_sum) {
  return SpaceTask(
      {.doc = "sums and differences of several numbers",
       .options =
           {{"terms", OptionKind::kRange, "[2, 3]", 2, 8, {}, "numbers in a sum"},
            {"digits", OptionKind::kRange, "[1, 2]", 1, 6, {}, "digits of each number of a question"},
            {"subtract", OptionKind::kBool, "true", 0, 0, {}, "minus signs too, so answers may be negative"},
            StyleOption("chat")}},
      ChainSumStrata, ChainSum);
}

}  // namespace tidepool::tasks
