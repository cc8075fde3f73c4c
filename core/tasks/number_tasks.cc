// Tasks on lists and notations of numbers: sorting, greatest common divisors, least common multiples, bases.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/base/names.h"
#include "core/tasks/factories.h"

namespace tidepool::tasks {
namespace {

int64_t Unit(int64_t decimals) { return decimals == 2 ? 100 : decimals == 1 ? 10 : 1; }

std::string Fixed(int64_t scaled, int64_t decimals) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(decimals),
                static_cast<double>(scaled) / static_cast<double>(Unit(decimals)));
  return std::string(text) == "-0" ? "0" : text;
}

// number_sorting: one stratum a (count, decimals, direction).
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

// gcd and lcm of two numbers, the order counts as another question.
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

// base_conversion: one stratum a base.
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

std::vector<TaskEntry> NumberTasks() {
  const auto range = [](const char* name, const char* fallback, int64_t min, int64_t max, const char* doc) {
    return Option{name, OptionKind::kRange, fallback, min, max, {}, doc};
  };
  const auto task = [](const char* name, const char* doc, std::vector<Option> options, StrataOf strata,
                       DecodePick decode) {
    options.push_back(StyleOption("chat"));
    return SpaceTask({name, doc, "questions", std::move(options)}, strata, decode);
  };
  const Option numbers = range("numbers", "[1, 1000]", 1, 1'000'000, "both numbers lie in this range");
  return {task("number_sorting", "sort a list of numbers, up or down",
               {range("count", "[3, 10]", 2, 100, "numbers in a list"),
                range("values", "[-100, 100]", -1'000'000, 1'000'000, "size of each number"),
                range("decimals", "[0, 2]", 0, 2, "digits behind the point of a question's numbers")},
               SortingStrata, NumberSorting),
          task("gcd", "greatest common divisor of two numbers", {numbers}, PairStrata, CommonDivisor<false>),
          task("lcm", "least common multiple of two numbers", {numbers}, PairStrata, CommonDivisor<true>),
          task("base_conversion", "write a number in another base",
               {range("bases", "[2, 16]", 2, 16, "bases to write in"),
                range("numbers", "[1, 1000]", 0, 1'000'000'000, "numbers to write")},
               BaseStrata, BaseConversion)};
}

}  // namespace tidepool::tasks
