// gcd and lcm of two numbers, the order counts as another question.
#include <numeric>

#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<std::vector<int64_t>> PairStrata(const OptionValues& options) {
  const auto [lo, hi] = options.Range("numbers");
  return std::vector<int64_t>{SaturatingMultiply(hi - lo + 1, hi - lo + 1)};
}

template <bool least_multiple>
Question CommonDivisor(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  const auto [lo, hi] = options.Range("numbers");
  const bool terse = IsTerse(options);
  CodeReader code(pick, 0);
  const int64_t a = code.InRange(lo, hi), b = code.InRange(lo, hi);
  const std::string pair = std::to_string(a) + (terse ? "," : " and ") + std::to_string(b);
  Question q;
  if (terse) {
    q.prompt = std::string(least_multiple ? "lcm " : "gcd ") + pair + "=";
  } else {
    q.prompt = std::string("What is the ") +
               (least_multiple ? "least common multiple" : "greatest common divisor") + " of " + pair +
               "? Reply with only the number.";
  }
  q.answer = std::to_string(least_multiple ? std::lcm(a, b) : std::gcd(a, b));
  q.fields = {{"answer_rule", "last_number"}};
  return q;
}

TaskPlugin OfPairs(const char* doc, DecodePick decode) {
  return SpaceTask(
      {.doc = doc,
       .options =
           {{"numbers", OptionKind::kRange, "[1, 1000]", 1, 1'000'000, {}, "both numbers lie in this range"},
            StyleOption("chat")}},
      PairStrata, decode);
}

}  // namespace

TP_PLUGIN(Task, gcd) { return OfPairs("greatest common divisor of two numbers", CommonDivisor<false>); }

TP_PLUGIN(Task, lcm) { return OfPairs("least common multiple of two numbers", CommonDivisor<true>); }

}  // namespace tidepool::tasks
