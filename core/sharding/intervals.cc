#include "core/sharding/intervals.h"

#include <algorithm>
#include <string>

#include "core/base/check.h"

namespace tidepool::sharding {
namespace {

constexpr int64_t kAligned = 64;  // elements; each parameter begins at a multiple (core/model/layout.h)

std::string Text(const Interval& i) {
  return "[" + std::to_string(i.from) + ", " + std::to_string(i.to) + ")";
}

}  // namespace

Interval Common(const Interval& a, const Interval& b) {
  const int64_t from = std::max(a.from, b.from);
  return {from, std::max(from, std::min(a.to, b.to))};
}

Interval Owned(int64_t elements, const Shard& shard) {
  TP_CHECK(elements >= 0 && shard.rank >= 0 && shard.rank < shard.world)
      << elements << " elements, rank " << shard.rank << " of " << shard.world;
  const int64_t blocks = (elements + kAligned - 1) / kAligned;
  const int64_t each = blocks / shard.world,
                rest = blocks % shard.world;  // the first `rest` ranks have one more
  const auto begin = [&](int64_t rank) {
    return std::min(elements, (rank * each + std::min(rank, rest)) * kAligned);
  };
  return {begin(shard.rank), begin(shard.rank + 1)};
}

std::vector<Interval> OwnedByAll(int64_t elements, int64_t world) {
  std::vector<Interval> all;
  for (int64_t rank = 0; rank < world; ++rank) all.push_back(Owned(elements, {rank, world}));
  return all;
}

std::vector<Interval> Within(std::span<const Interval> of_rank, const Interval& of, int64_t each) {
  std::vector<Interval> within;
  for (const Interval& i : of_rank) {
    const Interval part = Common(i, of);
    within.push_back(part.size() == 0 ? Interval{}
                                      : Interval{(part.from - of.from) * each, (part.to - of.from) * each});
  }
  return within;
}

StatusOr<std::vector<Copy>> Reshard(std::span<const Interval> sources, std::span<const Interval> targets) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i].size() > 0) order.push_back(i);
  std::ranges::sort(order, {}, [&](size_t i) { return sources[i].from; });
  std::vector<Copy> copies;
  for (size_t target = 0; target < targets.size(); ++target) {
    int64_t next = targets[target].from;  // all before it is covered
    for (const size_t source : order) {
      const Interval of = Common(sources[source], targets[target]);
      if (of.size() == 0) continue;
      if (of.from != next) {
        const bool twice = of.from < next;
        return DataLoss("elements " +
                        Text(twice ? Interval{of.from, std::min(of.to, next)} : Interval{next, of.from}) +
                        " of " + Text(targets[target]) + " are in " + (twice ? "several parts" : "no part"));
      }
      copies.push_back({source, target, of});
      next = of.to;
    }
    if (next < targets[target].to) {
      return DataLoss("elements " + Text({next, targets[target].to}) + " of " + Text(targets[target]) +
                      " are in no part");
    }
  }
  return copies;
}

int64_t Missing(std::vector<Interval> held, std::vector<Interval> wanted) {
  std::ranges::sort(held, {}, &Interval::from);
  std::ranges::sort(wanted, {}, &Interval::from);
  int64_t missing = 0;
  auto next = held.begin();
  for (const Interval& want : wanted) {
    missing += want.size();
    while (next != held.end() && next->to <= want.from) ++next;
    for (auto it = next; it != held.end() && it->from < want.to; ++it) missing -= Common(*it, want).size();
  }
  return missing;
}

}  // namespace tidepool::sharding
