// Tasks whose answer is one number.

#include <cmath>
#include <utility>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/tasks/factories.h"

namespace tidepool::tasks {
namespace {

std::string Number(int64_t n) { return std::to_string(n); }

Question NumberQuestion(std::string prompt, int64_t answer) {
  return {.prompt = std::move(prompt),
          .messages = {},
          .answer = Number(answer),
          .fields = {{"answer_rule", "last_number"}}};
}

// products: a * b. What is held out are unordered pairs, in both orders, so that the answer of a
// held-out question never appears in training under the swapped prompt.
class Products : public Task {
 public:
  using Pair = std::pair<int32_t, int32_t>;

  static int64_t Pairs(const OptionValues& options) {
    const auto [lo, hi] = options.Range("factors");
    const int64_t n = hi - lo + 1;
    return n * (n + 1) / 2;
  }

  static StatusOr<std::unique_ptr<Task>> Make(const OptionValues& options, const TaskRequest& request) {
    const int64_t pairs = Pairs(options);
    if (request.held_out < 0 || request.held_out > pairs / 2) {
      return InvalidArgument("held_out: expected 0 to " + Number(pairs / 2) + ", half of the " +
                             Number(pairs) + " unordered pairs of these factors; found " +
                             Number(request.held_out) + "; hold out fewer, or widen factors");
    }
    if (request.size < 1)
      return InvalidArgument("size: expected at least 1 training question; found " + Number(request.size));
    auto task = std::make_unique<Products>();
    task->terse_ = IsTerse(options);
    const auto [lo, hi] = options.Range("factors");
    const uint64_t seed = Mix64(request.seed ^ 0x70726f64ULL);
    for (int64_t i = 0; i < pairs; ++i) {
      std::vector<Pair>& out = i < request.held_out ? task->held_out_ : task->train_;
      if (static_cast<int64_t>(task->train_.size()) >= request.size) break;
      const auto [a, b] = Unrank(PermutedIndex(i, pairs, seed), lo);
      out.emplace_back(a, b);
      if (a != b) out.emplace_back(b, a);
    }
    if (static_cast<int64_t>(task->train_.size()) > request.size) task->train_.pop_back();
    Rng(seed).Fork("order").Shuffle(std::span<Pair>(task->train_));
    return std::unique_ptr<Task>(std::move(task));
  }

  [[nodiscard]] int64_t train_size() const override { return static_cast<int64_t>(train_.size()); }
  [[nodiscard]] int64_t held_out_size() const override { return static_cast<int64_t>(held_out_.size()); }
  [[nodiscard]] Question Train(int64_t index) const override {
    return Ask(train_.at(static_cast<size_t>(index)));
  }
  [[nodiscard]] Question HeldOut(int64_t index) const override {
    return Ask(held_out_.at(static_cast<size_t>(index)));
  }

 private:
  // Pair number `rank` in (a, b) with a <= b, counted (lo,lo), (lo,lo+1), (lo+1,lo+1), ...
  static Pair Unrank(int64_t rank, int64_t lo) {
    auto b = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(rank) + 1.0) - 1.0) / 2.0);
    while (b * (b + 1) / 2 > rank) --b;  // the square root may be off by one
    while ((b + 1) * (b + 2) / 2 <= rank) ++b;
    const int64_t a = rank - b * (b + 1) / 2;
    return {static_cast<int32_t>(lo + a), static_cast<int32_t>(lo + b)};
  }

  [[nodiscard]] Question Ask(const Pair& pair) const {
    const int64_t a = pair.first;
    const int64_t b = pair.second;
    Question q =
        NumberQuestion(terse_ ? Number(a) + "*" + Number(b) + "="
                              : "What is " + Number(a) + " * " + Number(b) + "? Reply with only the number.",
                       a * b);
    q.fields["a"] = Number(a);
    q.fields["b"] = Number(b);
    return q;
  }

  bool terse_ = false;
  std::vector<Pair> train_;
  std::vector<Pair> held_out_;
};

// chain_sum: terms of one number of digits, joined by + and -. One stratum for each (terms, digits).
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
    text += Number(value);
    sum += minus ? -value : value;
  }
  return NumberQuestion(terse ? text + "=" : "What is " + text + "? Reply with only the number.", sum);
}

// modular: (a op b) mod p. One stratum for each (p, op).
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
  if (IsTerse(options)) return NumberQuestion(Number(a) + op + Number(b) + " mod " + Number(p) + "=", answer);
  return NumberQuestion("What is (" + Number(a) + " " + op + " " + Number(b) + ") mod " + Number(p) +
                            "? Reply with only the number.",
                        answer);
}

// linear_equations: a x + b = c with an integer solution.
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
  const std::string c = Number(a * x + b);
  if (IsTerse(options))
    return NumberQuestion(Number(a) + "x" + sign + Number(std::abs(b)) + "=" + c + " x=", x);
  return NumberQuestion("Solve for x: " + Number(a) + "x " + sign + " " + Number(std::abs(b)) + " = " + c +
                            ". Reply with only the number.",
                        x);
}

}  // namespace

Option StyleOption(const char* default_style) {
  return {.name = "style",
          .kind = OptionKind::kChoice,
          .default_json = std::string("\"") + default_style + "\"",
          .choices = {"chat", "terse"},
          .doc =
              "wording of the prompt: a sentence for instruction-tuned models, or a few characters for tiny "
              "ones"};
}

std::vector<TaskEntry> ArithmeticTasks() {
  return {
      {.info = {"products",
                "a * b; held-out pairs are held out in both orders",
                "unordered pairs",
                {{"factors", OptionKind::kRange, "[2, 9]", 0, 9999, {}, "both factors lie in this range"},
                 StyleOption("chat")}},
       .make = Products::Make,
       .units = [](const OptionValues& o) -> StatusOr<int64_t> { return Products::Pairs(o); }},
      SpaceTask(
          {"chain_sum",
           "sums and differences of several numbers",
           "questions",
           {{"terms", OptionKind::kRange, "[2, 3]", 2, 8, {}, "numbers in a sum"},
            {"digits", OptionKind::kRange, "[1, 2]", 1, 6, {}, "digits of each number of a question"},
            {"subtract", OptionKind::kBool, "true", 0, 0, {}, "minus signs too, so answers may be negative"},
            StyleOption("chat")}},
          ChainSumStrata, ChainSum),
      SpaceTask({"modular",
                 "(a op b) mod p",
                 "questions",
                 {{"modulus", OptionKind::kRange, "[2, 13]", 2, 1000, {}, "p"},
                  {"operands", OptionKind::kRange, "[0, 99]", 0, 99999, {}, "a and b"},
                  {"ops", OptionKind::kText, "\"+-*\"", 1, 3, {}, "operators to draw from"},
                  StyleOption("chat")}},
                ModularStrata, Modular),
      SpaceTask({"linear_equations",
                 "a x + b = c with an integer solution",
                 "questions",
                 {{"a", OptionKind::kRange, "[2, 9]", 1, 999, {}, "factor of x"},
                  {"b", OptionKind::kRange, "[-20, 20]", -9999, 9999, {}, "constant"},
                  {"x", OptionKind::kRange, "[-10, 10]", -9999, 9999, {}, "solution"},
                  StyleOption("chat")}},
                LinearStrata, LinearEquation),
  };
}

}  // namespace tidepool::tasks
