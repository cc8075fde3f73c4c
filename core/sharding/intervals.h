#pragma once
// Who owns which interval of the one flat parameter space (core/model/layout.h), and the copies that lead
// from one division of it to another. Numbers in, numbers out: nothing here knows tensors, files or sockets.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/shard.h"
#include "core/base/status.h"

namespace tidepool::sharding {

struct Interval {
  int64_t from = 0, to = 0;  // [from, to); empty where they are equal
  [[nodiscard]] int64_t size() const { return to - from; }
  bool operator==(const Interval&) const = default;
};
Interval Common(const Interval& a, const Interval& b);  // empty: they have nothing in common

// What a data-parallel rank owns of a space of `elements`. The intervals of all ranks cover it, in the order
// of the ranks; they begin at multiples of 64, as parameters do, and differ by 64 elements at most. requires
// 0 <= rank < world, elements >= 0
Interval Owned(int64_t elements, const Shard& shard);
std::vector<Interval> OwnedByAll(int64_t elements, int64_t world);  // [rank]
// What each has of `of`, counted from its beginning, in units of which an element has `each`; empty: {0, 0}.
std::vector<Interval> Within(std::span<const Interval> of_rank, const Interval& of, int64_t each = 1);

// One copy of a reshard: what `source` has of `of` goes to `target`.
struct Copy {
  size_t source = 0, target = 0;  // places in what Reshard was given
  Interval of;
  bool operator==(const Copy&) const = default;
};
// The copies by which targets[i] get their intervals from sources[j], in order of targets and then of the
// space. Each element is copied once. kDataLoss: some element of a target is in no source, or in several.
StatusOr<std::vector<Copy>> Reshard(std::span<const Interval> sources, std::span<const Interval> targets);

// Elements of `wanted` that are not in `held`. requires, of each, that none are in common
int64_t Missing(std::vector<Interval> held, std::vector<Interval> wanted);

}  // namespace tidepool::sharding
