// Tasks on lists and notations of numbers: sorting, greatest common divisors, least common multiples, bases.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/tasks/factories.h"

namespace tidepool::tasks {
namespace {

std::string Fixed(int64_t scaled, int64_t decimals) {
  const int64_t unit = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(decimals),
                static_cast<double>(scaled) / static_cast<double>(unit));
  return std::string(text) == "-0" ? "0" : text;
}

// number_sorting: one stratum a (count, decimals, direction).
class NumberSorting : public SpaceTask {
 public:
  NumberSorting(QuestionSpace space, const OptionValues& options, uint64_t seed)
      : SpaceTask(std::move(space)),
        count_(options.Range("count")),
        values_(options.Range("values")),
        decimals_(options.Range("decimals")),
        seed_(seed),
        terse_(options.Text("style") == "terse") {}

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    const auto [n_lo, n_hi] = options.Range("count");
    const auto [lo, hi] = options.Range("values");
    const auto [d_lo, d_hi] = options.Range("decimals");
    std::vector<int64_t> strata;
    for (int64_t n = n_lo; n <= n_hi; ++n) {
      for (int64_t d = d_lo; d <= d_hi; ++d) {
        const int64_t choices = (hi - lo) * Unit(d) + 1;
        strata.insert(strata.end(), 2, SaturatingPower(choices, n));
      }
    }
    return strata;
  }

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    const bool down = pick.stratum % 2 == 1;
    const int64_t kinds = decimals_.second - decimals_.first + 1;
    const int64_t d = decimals_.first + pick.stratum / 2 % kinds, n = count_.first + pick.stratum / 2 / kinds;
    CodeReader code(pick, seed_);
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < n; ++i)
      numbers.push_back(code.InRange(values_.first * Unit(d), values_.second * Unit(d)));
    const auto list = [&] {
      std::string text;
      for (const int64_t v : numbers) text += (text.empty() ? "" : ", ") + Fixed(v, d);
      return text;
    };
    Question q;
    q.prompt = terse_ ? std::string(down ? "desc " : "asc ") + list() + "="
                      : std::string("Sort these numbers in ") + (down ? "descending" : "ascending") +
                            " order: " + list() + ". Reply with only a JSON list.";
    std::ranges::sort(numbers);
    if (down) std::ranges::reverse(numbers);
    q.answer = "[" + list() + "]";
    q.fields = {{"answer_rule", "sorting"}, {"direction", down ? "descending" : "ascending"}};
    return q;
  }

 private:
  static int64_t Unit(int64_t decimals) { return decimals == 2 ? 100 : decimals == 1 ? 10 : 1; }
  std::pair<int64_t, int64_t> count_, values_, decimals_;
  uint64_t seed_;
  bool terse_;
};

// gcd and lcm of two numbers, the order counts as another question.
template <bool least_multiple>
class CommonDivisor : public SpaceTask {
 public:
  CommonDivisor(QuestionSpace space, const OptionValues& options, uint64_t /*seed*/)
      : SpaceTask(std::move(space)),
        numbers_(options.Range("numbers")),
        terse_(options.Text("style") == "terse") {}

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    const auto [lo, hi] = options.Range("numbers");
    return std::vector<int64_t>{SaturatingMultiply(hi - lo + 1, hi - lo + 1)};
  }

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    CodeReader code(pick, 0);
    const int64_t a = code.InRange(numbers_.first, numbers_.second),
                  b = code.InRange(numbers_.first, numbers_.second);
    const std::string pair = std::to_string(a) + (terse_ ? "," : " and ") + std::to_string(b);
    Question q;
    if (terse_) {
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

 private:
  std::pair<int64_t, int64_t> numbers_;
  bool terse_;
};

// base_conversion: one stratum a base.
class BaseConversion : public SpaceTask {
 public:
  BaseConversion(QuestionSpace space, const OptionValues& options, uint64_t /*seed*/)
      : SpaceTask(std::move(space)),
        bases_(options.Range("bases")),
        numbers_(options.Range("numbers")),
        terse_(options.Text("style") == "terse") {}

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    const auto [lo, hi] = options.Range("numbers");
    const auto [b_lo, b_hi] = options.Range("bases");
    return std::vector<int64_t>(static_cast<size_t>(b_hi - b_lo + 1), hi - lo + 1);
  }

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    const int64_t base = bases_.first + pick.stratum, number = numbers_.first + pick.code;
    std::string digits;
    for (int64_t left = number; left > 0 || digits.empty(); left /= base)
      digits.insert(digits.begin(), "0123456789abcdef"[left % base]);
    Question q;
    q.prompt = terse_ ? std::to_string(number) + " base " + std::to_string(base) + "="
                      : "Write " + std::to_string(number) + " in base " + std::to_string(base) +
                            (base > 10 ? ", with the letters a to f as digits above 9" : "") +
                            ". Reply with only the result.";
    q.answer = digits;
    q.fields = {{"answer_rule", "text"}};
    return q;
  }

 private:
  std::pair<int64_t, int64_t> bases_, numbers_;
  bool terse_;
};

template <typename T>
TaskEntry Entry(const char* name, const char* doc, std::vector<Option> options) {
  options.push_back(StyleOption("chat"));
  return {
      .info = {name, doc, "questions", std::move(options)}, .make = MakeSpaceTask<T>, .units = CountSpace<T>};
}

}  // namespace

std::vector<TaskEntry> NumberTasks() {
  const Option numbers{
      "numbers", OptionKind::kRange, "[1, 1000]", 1, 1'000'000, {}, "both numbers lie in this range"};
  return {
      Entry<NumberSorting>(
          "number_sorting", "sort a list of numbers, up or down",
          {{"count", OptionKind::kRange, "[3, 10]", 2, 100, {}, "numbers in a list"},
           {"values", OptionKind::kRange, "[-100, 100]", -1'000'000, 1'000'000, {}, "size of each number"},
           {"decimals",
            OptionKind::kRange,
            "[0, 2]",
            0,
            2,
            {},
            "digits behind the point of a question's numbers"}}),
      Entry<CommonDivisor<false>>("gcd", "greatest common divisor of two numbers", {numbers}),
      Entry<CommonDivisor<true>>("lcm", "least common multiple of two numbers", {numbers}),
      Entry<BaseConversion>(
          "base_conversion", "write a number in another base",
          {{"bases", OptionKind::kRange, "[2, 16]", 2, 16, {}, "bases to write in"},
           {"numbers", OptionKind::kRange, "[1, 1000]", 0, 1'000'000'000, {}, "numbers to write"}})};
}

}  // namespace tidepool::tasks
