// linear_equations: a x + b = c with an integer solution.
#include <cstdlib>

#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<std::vector<int64_t>> LinearStrata(const OptionValues& options) {
  int64_t n = 1;
  for (const char* name : {"a", "b", "x"}) {
    const auto [lo, hi] = options.Range(name);
    n = SaturatingMultiply(n, hi - lo + 1);
  }
  return std::vector<int64_t>{n};
}

Question LinearEquation(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  CodeReader code(pick, 0);  // the space is small: no draw beyond the code
  const auto draw = [&](const char* name) {
    const auto [lo, hi] = options.Range(name);
    return code.InRange(lo, hi);
  };
  const int64_t a = draw("a");
  const int64_t b = draw("b");
  const int64_t x = draw("x");
  const std::string sign = b < 0 ? "-" : "+";
  const std::string c = std::to_string(a * x + b);
  if (IsTerse(options))
    return NumberQuestion(std::to_string(a) + "x" + sign + std::to_string(std::abs(b)) + "=" + c + " x=", x);
  return NumberQuestion("Solve for x: " + std::to_string(a) + "x " + sign + " " +
                            std::to_string(std::abs(b)) + " = " + c + ". Reply with only the number.",
                        x);
}

}  // namespace

TP_PLUGIN(Task, linear_equations) {
  return SpaceTask({.doc = "a x + b = c with an integer solution",
                    .options = {{"a", OptionKind::kRange, "[2, 9]", 1, 999, {}, "factor of x"},
                                {"b", OptionKind::kRange, "[-20, 20]", -9999, 9999, {}, "constant"},
                                {"x", OptionKind::kRange, "[-10, 10]", -9999, 9999, {}, "solution"},
                                StyleOption("chat")}},
                   LinearStrata, LinearEquation);
}

}  // namespace tidepool::tasks
