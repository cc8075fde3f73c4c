// products: a * b. What is held out are unordered pairs, in both orders, so that the answer of a
// held-out question never appears in training under the swapped prompt.
#include <cmath>
#include <utility>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

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
      return InvalidArgument("held_out: expected 0 to " + std::to_string(pairs / 2) + ", half of the " +
                             std::to_string(pairs) + " unordered pairs of these factors; found " +
                             std::to_string(request.held_out) + "; hold out fewer, or widen factors");
    }
    if (request.size < 1)
      return InvalidArgument("size: expected at least 1 training question; found " +
                             std::to_string(request.size));
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
    Question q = NumberQuestion(
        terse_ ? std::to_string(a) + "*" + std::to_string(b) + "="
               : "What is " + std::to_string(a) + " * " + std::to_string(b) + "? Reply with only the number.",
        a * b);
    q.fields["a"] = std::to_string(a);
    q.fields["b"] = std::to_string(b);
    return q;
  }

  bool terse_ = false;
  std::vector<Pair> train_;
  std::vector<Pair> held_out_;
};

}  // namespace

TP_PLUGIN(Task, products) {
  return {
      .doc = "a * b; held-out pairs are held out in both orders",
      .held_out_unit = "unordered pairs",
      .options = {{"factors", OptionKind::kRange, "[2, 9]", 0, 9999, {}, "both factors lie in this range"},
                  StyleOption("chat")},
      .make = Products::Make,
      .units = [](const OptionValues& o) -> StatusOr<int64_t> { return Products::Pairs(o); }};
}

}  // namespace tidepool::tasks
