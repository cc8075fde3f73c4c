// base_conversion: one stratum a base.
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<std::vector<int64_t>> BaseStrata(const OptionValues& options) {
  const auto [lo, hi] = options.Range("numbers");
  const auto [b_lo, b_hi] = options.Range("bases");
  return std::vector<int64_t>(static_cast<size_t>(b_hi - b_lo + 1), hi - lo + 1);
}

Question BaseConversion(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  const int64_t base = options.Range("bases").first + pick.stratum,
                number = options.Range("numbers").first + pick.code;
  std::string digits;
  for (int64_t left = number; left > 0 || digits.empty(); left /= base)
    digits.insert(digits.begin(), "0123456789abcdef"[left % base]);
  Question q;
  q.prompt = IsTerse(options) ? std::to_string(number) + " base " + std::to_string(base) + "="
                              : "Write " + std::to_string(number) + " in base " + std::to_string(base) +
                                    (base > 10 ? ", with the letters a to f as digits above 9" : "") +
                                    ". Reply with only the result.";
  q.answer = digits;
  q.fields = {{"answer_rule", "text"}};
  return q;
}

}  // namespace

TP_PLUGIN(Task, base_conversion) {
  return SpaceTask(
      {.doc = "write a number in another base",
       .options = {{"bases", OptionKind::kRange, "[2, 16]", 2, 16, {}, "bases to write in"},
                   {"numbers", OptionKind::kRange, "[1, 1000]", 0, 1'000'000'000, {}, "numbers to write"},
                   StyleOption("chat")}},
      BaseStrata, BaseConversion);
}

}  // namespace tidepool::tasks
