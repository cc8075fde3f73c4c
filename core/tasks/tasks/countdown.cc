// countdown: reach a target with given numbers, each used once, and + - * / and brackets.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/base/names.h"
#include "core/base/rng.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

// Multisets of k numbers out of v values: C(v + k - 1, k), saturating.
int64_t Multisets(int64_t v, int64_t k) {
  __int128 n = 1;
  for (int64_t i = 1; i <= k; ++i) {
    n = n * (v + i - 1) / i;
    if (n > kSpaceLimit) return kSpaceLimit;
  }
  return static_cast<int64_t>(n);
}

// One stratum for each count of numbers; a code is the rank of a multiset, so two questions never
// have the same numbers in another order. Order and target are drawn from (seed, code).
StatusOr<std::vector<int64_t>> NumberStrata(const OptionValues& options) {
  const auto [lo, hi] = options.Range("numbers");
  const auto [v_lo, v_hi] = options.Range("values");
  std::vector<int64_t> strata;
  for (int64_t k = lo; k <= hi; ++k) strata.push_back(Multisets(v_hi - v_lo + 1, k));
  return strata;
}

// The multiset of k values in [least, most] of that rank, sorted: number i (from the largest) is the largest
// c with Multisets(c, i) <= rank (combinatorial number system).
std::vector<int64_t> Unrank(int64_t rank, int64_t k, int64_t least, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t i = k; i >= 1; --i) {
    int64_t lo = 0;
    int64_t hi = most - least;
    while (lo < hi) {
      const int64_t mid = (lo + hi + 1) / 2;
      if (Multisets(mid, i) <= rank) {
        lo = mid;
      } else {
        hi = mid - 1;
      }
    }
    rank -= Multisets(lo, i);
    out.push_back(least + lo);
  }
  return out;
}

// A chain over a random order of the numbers whose value lies in the target range; of 500 draws,
// the nearest to the range where none does (small numbers may not reach it).
std::pair<int64_t, std::string> Solve(const std::vector<int64_t>& numbers, int64_t least, int64_t most,
                                      Rng& rng) {
  std::pair<int64_t, std::string> best;
  int64_t best_distance = INT64_MAX;
  for (int draw = 0; draw < 500 && best_distance > 0; ++draw) {
    std::vector<int64_t> order = numbers;
    rng.Shuffle(std::span<int64_t>(order));
    int64_t value = order[0];
    std::string text = std::to_string(order[0]);
    char last = '*';
    for (size_t i = 1; i < order.size(); ++i) {
      char op = "+-*/"[rng.Below(4)];
      const int64_t n = order[i];
      if (op == '/' && (n == 0 || value % n != 0)) op = '+';
      const bool loose = last == '+' || last == '-';
      if ((op == '*' || op == '/') && loose) text = "(" + text + ")";
      text += op + std::to_string(n);
      value = op == '+' ? value + n : op == '-' ? value - n : op == '*' ? value * n : value / n;
      last = op;
      if (std::abs(value) > 1'000'000'000) break;
    }
    if (std::abs(value) > 1'000'000'000) continue;
    const int64_t distance = value < least ? least - value : value > most ? value - most : 0;
    if (distance < best_distance) {
      best_distance = distance;
      best = {value, text};
    }
  }
  return best;
}

Question Countdown(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed) {
  const auto [v_lo, v_hi] = options.Range("values");
  const auto [t_lo, t_hi] = options.Range("target");
  const bool terse = IsTerse(options);
  std::vector<int64_t> numbers = Unrank(pick.code, options.Range("numbers").first + pick.stratum, v_lo, v_hi);
  Rng rng = Rng(seed)
                .Fork("countdown")
                .Fork(static_cast<uint64_t>(pick.stratum))
                .Fork(static_cast<uint64_t>(pick.code));
  rng.Shuffle(std::span<int64_t>(numbers));
  const auto [target, solution] = Solve(numbers, t_lo, t_hi, rng);
  const std::string list = Listed(
      numbers, [](int64_t n) { return std::to_string(n); }, terse ? " " : ", ");
  std::string json = "[" + list + "]";
  if (terse) std::ranges::replace(json, ' ', ',');
  Question q;
  q.prompt = terse ? list + "=" + std::to_string(target) + ":"
                   : "Using the numbers " + list +
                         ", each exactly once, and + - * / and brackets, write an expression that equals " +
                         std::to_string(target) + ". End with <answer>expression</answer>.";
  q.answer = solution;
  q.fields = {{"answer_rule", "countdown"}, {"numbers", json}, {"target", std::to_string(target)}};
  return q;
}

}  // namespace

TP_PLUGIN(Task, countdown) {
  const auto range = OptionKind::kRange;
  return SpaceTask({.doc = "reach a target with given numbers and + - * /",
                    .held_out_unit = "multisets of numbers",
                    .options = {{"numbers", range, "[3, 4]", 2, 6, {}, "how many numbers"},
                                {"values", range, "[1, 100]", 1, 999, {}, "size of each number"},
                                {"target",
                                 range,
                                 "[100, 999]",
                                 1,
                                 99999,
                                 {},
                                 "size of the target, where the numbers can reach it"},
                                StyleOption("chat")}},
                   NumberStrata, Countdown);
}

}  // namespace tidepool::tasks
