#include "scheduler/balance.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "core/base/check.h"

namespace tidepool::scheduler {
namespace {

struct Bin {
  double cost = 0;
  std::vector<int64_t> items;
};
struct Tuple {                   // k bins, most expensive first
  std::vector<Bin> bins;
  int64_t first = 0;             // smallest item: decides ties
  [[nodiscard]] double Spread() const { return bins.front().cost - bins.back().cost; }
};
// The largest spread first; among equals the one with the smallest item.
struct Later {
  bool operator()(const Tuple& x, const Tuple& y) const {
    return x.Spread() != y.Spread() ? x.Spread() < y.Spread() : x.first > y.first;
  }
};

void Sort(Tuple& t) {
  std::stable_sort(t.bins.begin(), t.bins.end(), [](const Bin& x, const Bin& y) { return x.cost > y.cost; });
}

}  // namespace

std::vector<std::vector<int64_t>> BalancedPartition(std::span<const double> costs, int64_t ranks, bool equal_count) {
  TP_CHECK(ranks > 0);
  const auto k = static_cast<size_t>(ranks);
  std::vector<std::vector<int64_t>> result(k);
  if (costs.empty()) return result;
  std::priority_queue<Tuple, std::vector<Tuple>, Later> heap;
  std::vector<int64_t> order(costs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return costs[static_cast<size_t>(x)] > costs[static_cast<size_t>(y)]; });
  const size_t at_once = equal_count ? k : 1;
  for (size_t i = 0; i < order.size(); i += at_once) {
    Tuple t{.bins = std::vector<Bin>(k), .first = order[i]};
    for (size_t j = 0; j < at_once && i + j < order.size(); ++j) {
      t.bins[j] = {costs[static_cast<size_t>(order[i + j])], {order[i + j]}};
      t.first = std::min(t.first, order[i + j]);
    }
    Sort(t);
    heap.push(std::move(t));
  }
  while (heap.size() > 1) {
    Tuple x = heap.top();
    heap.pop();
    Tuple y = heap.top();
    heap.pop();
    for (size_t i = 0; i < k; ++i) {
      Bin& to = x.bins[i];
      Bin& from = y.bins[k - 1 - i];
      to.cost += from.cost;
      to.items.insert(to.items.end(), from.items.begin(), from.items.end());
    }
    x.first = std::min(x.first, y.first);
    Sort(x);
    heap.push(std::move(x));
  }
  Tuple last = heap.top();
  // Bins by their smallest item, so that rank 0 has the batch's first group.
  for (Bin& b : last.bins) std::sort(b.items.begin(), b.items.end());
  std::stable_sort(last.bins.begin(), last.bins.end(), [](const Bin& x, const Bin& y) {
    if (x.items.empty() != y.items.empty()) return y.items.empty();
    return !x.items.empty() && x.items.front() < y.items.front();
  });
  for (size_t i = 0; i < k; ++i) result[i] = std::move(last.bins[i].items);
  return result;
}

}  // namespace tidepool::scheduler
