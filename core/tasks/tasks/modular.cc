// modular: (a op b) mod p. One stratum for each (p, op).
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<std::vector<int64_t>> ModularStrata(const OptionValues& options) {
  const auto [lo, hi] = options.Range("operands");
  const auto [p_lo, p_hi] = options.Range("modulus");
  const std::string& ops = options.Text("ops");
  for (size_t i = 0; i < ops.size(); ++i) {
    if (std::string("+-*").find(ops[i]) == std::string::npos ||
        ops.find(ops[i], i + 1) != std::string::npos) {
      return InvalidArgument("ops: expected some of + - *, each once; found \"" + ops + "\"");
    }
  }
  return std::vector<int64_t>(static_cast<size_t>((p_hi - p_lo + 1)) * ops.size(),
                              (hi - lo + 1) * (hi - lo + 1));
}

Question Modular(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  const std::string& ops = options.Text("ops");
  const auto [lo, hi] = options.Range("operands");
  const int64_t p = options.Range("modulus").first + pick.stratum / static_cast<int64_t>(ops.size());
  const char op = ops[static_cast<size_t>(pick.stratum) % ops.size()];
  const int64_t a = lo + pick.code / (hi - lo + 1), b = lo + pick.code % (hi - lo + 1);
  const int64_t value = op == '+' ? a + b : op == '-' ? a - b : a * b;
  const int64_t answer = ((value % p) + p) % p;
  if (IsTerse(options))
    return NumberQuestion(std::to_string(a) + op + std::to_string(b) + " mod " + std::to_string(p) + "=",
                          answer);
  return NumberQuestion("What is (" + std::to_string(a) + " " + op + " " + std::to_string(b) + ") mod " +
                            std::to_string(p) + "? Reply with only the number.",
                        answer);
}

}  // namespace

TP_PLUGIN(Task, modular) {
  return SpaceTask({.doc = "(a op b) mod p",
                    .options = {{"modulus", OptionKind::kRange, "[2, 13]", 2, 1000, {}, "p"},
                                {"operands", OptionKind::kRange, "[0, 99]", 0, 99999, {}, "a and b"},
                                {"ops", OptionKind::kText, "\"+-*\"", 1, 3, {}, "operators to draw from"},
                                StyleOption("chat")}},
                   ModularStrata, Modular);
}

}  // namespace tidepool::tasks
