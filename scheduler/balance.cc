#include "scheduler/balance.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace tidepool::scheduler {
namespace {

struct Bin {
  double cost = 0;
  std::vector<int64_t> items;
};
struct Tuple {  // k bins, most expensive first; empty ones, which come last, are not stored
  std::vector<Bin> bins;
  int64_t first = 0;  // smallest item: decides ties
  double spread = 0;  // of the costs of all k
};
// The largest spread first; among equals the one with the smallest item.
struct Later {
  bool operator()(const Tuple& x, const Tuple& y) const {
    return x.spread != y.spread ? x.spread < y.spread : x.first > y.first;
  }
};

// The first `sorted` bins are in order already. Most joins add one group to a tuple of thousands of bins, so
// what is in order is not sorted again: the rest goes in where it belongs, and from there on alone anything
// moves.
void Sort(Tuple& t, size_t k, size_t sorted) {
  const auto before = [](const Bin& x, const Bin& y) { return x.cost > y.cost; };
  const auto rest = t.bins.begin() + static_cast<std::ptrdiff_t>(sorted);
  std::stable_sort(rest, t.bins.end(), before);
  if (rest != t.bins.end())
    std::inplace_merge(std::upper_bound(t.bins.begin(), rest, *rest, before), rest, t.bins.end(), before);
  t.spread = t.bins.front().cost - (t.bins.size() < k ? 0 : t.bins.back().cost);
}

// The most expensive bin of one with the cheapest of the other, and so on: bin i with bin k - 1 - i.
Tuple Join(Tuple x, Tuple y, size_t k) {
  const size_t p = x.bins.size(), q = y.bins.size();
  for (size_t i = k - q; i < p; ++i) {  // both have something there
    Bin& to = x.bins[i];
    Bin& from = y.bins[k - 1 - i];
    to.cost += from.cost;
    to.items.insert(to.items.end(), from.items.begin(), from.items.end());
  }
  for (size_t i = std::max(p, k - q); i < k; ++i) x.bins.push_back(std::move(y.bins[k - 1 - i]));
  x.first = std::min(x.first, y.first);
  Sort(x, k, std::min(p, k - q));
  return x;
}

}  // namespace

std::vector<std::vector<int64_t>> BalancedPartition(std::span<const double> costs, int64_t ranks,
                                                    bool equal_count) {
  TP_CHECK(ranks > 0);
  const auto k = static_cast<size_t>(ranks);
  std::vector<std::vector<int64_t>> result(k);
  if (costs.empty()) return result;
  std::vector<Tuple> heap;
  std::vector<int64_t> order(costs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
    return costs[static_cast<size_t>(x)] > costs[static_cast<size_t>(y)];
  });
  const size_t at_once = equal_count ? k : 1;
  for (size_t i = 0; i < order.size(); i += at_once) {
    Tuple t{.bins = {}, .first = order[i], .spread = 0};
    for (size_t j = 0; j < at_once && i + j < order.size(); ++j) {
      t.bins.push_back({costs[static_cast<size_t>(order[i + j])], {order[i + j]}});
      t.first = std::min(t.first, order[i + j]);
    }
    Sort(t, k, 0);
    heap.push_back(std::move(t));
  }
  std::make_heap(heap.begin(), heap.end(), Later());
  const auto take = [&] {
    std::pop_heap(heap.begin(), heap.end(), Later());
    Tuple t = std::move(heap.back());
    heap.pop_back();
    return t;
  };
  while (heap.size() > 1) {
    Tuple x = take();
    heap.push_back(Join(std::move(x), take(), k));
    std::push_heap(heap.begin(), heap.end(), Later());
  }
  Tuple last = take();
  // Bins by their smallest item, so that rank 0 has the batch's first group.
  for (Bin& b : last.bins) std::sort(b.items.begin(), b.items.end());
  std::ranges::sort(last.bins, {}, [](const Bin& b) { return b.items.front(); });
  for (size_t i = 0; i < last.bins.size(); ++i) result[i] = std::move(last.bins[i].items);
  return result;
}

}  // namespace tidepool::scheduler
