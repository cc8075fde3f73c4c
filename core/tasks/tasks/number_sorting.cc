// number_sorting: one stratum a (count, decimals, direction).
#include <algorithm>
#include <cstdio>

#include "core/base/names.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

int64_t Unit(int64_t decimals) { return decimals == 2 ? 100 : decimals == 1 ? 10 : 1; }

std::string Fixed(int64_t scaled, int64_t decimals) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(decimals),
                static_cast<double>(scaled) / static_cast<double>(Unit(decimals)));
  return std::string(text) == "-0" ? "0" : text;
}

StatusOr<std::vector<int64_t>> SortingStrata(const OptionValues& options) {
  const auto [n_lo, n_hi] = options.Range("count");
  const auto [lo, hi] = options.Range("values");
  const auto [d_lo, d_hi] = options.Range("decimals");
  std::vector<int64_t> strata;
  for (int64_t n = n_lo; n <= n_hi; ++n) {
    for (int64_t d = d_lo; d <= d_hi; ++d)
      strata.insert(strata.end(), 2, SaturatingPower((hi - lo) * Unit(d) + 1, n));
  }
  return strata;
}

Question NumberSorting(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed) {
  const bool down = pick.stratum % 2 == 1;
  const auto [d_lo, d_hi] = options.Range("decimals");
  const auto [lo, hi] = options.Range("values");
  const int64_t kinds = d_hi - d_lo + 1, d = d_lo + pick.stratum / 2 % kinds;
  const int64_t n = options.Range("count").first + pick.stratum / 2 / kinds;
  CodeReader code(pick, seed);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(code.InRange(lo * Unit(d), hi * Unit(d)));
  const auto list = [&, d = d] { return Listed(numbers, [d](int64_t v) { return Fixed(v, d); }); };
  Question q;
  q.prompt = IsTerse(options) ? std::string(down ? "desc " : "asc ") + list() + "="
                              : std::string("Sort these numbers in ") + (down ? "descending" : "ascending") +
                                    " order: " + list() + ". Reply with only a JSON list.";
  std::ranges::sort(numbers);
  if (down) std::ranges::reverse(numbers);
  q.answer = "[" + list() + "]";
  q.fields = {{"answer_rule", "sorting"}, {"direction", down ? "descending" : "ascending"}};
  return q;
}

}  // namespace

TP_PLUGIN(Task, number_sorting) {
  return SpaceTask(
      {.doc = "sort a list of numbers, up or down",
       .options =
           {{"count", OptionKind::kRange, "[3, 10]", 2, 100, {}, "numbers in a list"},
            {"values", OptionKind::kRange, "[-100, 100]", -1'000'000, 1'000'000, {}, "size of each number"},
            {"decimals",
             OptionKind::kRange,
             "[0, 2]",
             0,
             2,
             {},
             "digits behind the point of a question's numbers"},
            StyleOption("chat")}},
      SortingStrata, NumberSorting);
}

}  // namespace tidepool::tasks
