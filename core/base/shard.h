#pragma once
// Which part of what ranks share one of them has.

#include <compare>
#include <cstdint>

#include "core/base/fields.h"

namespace tidepool {

// A rank's place among those that share the optimizer's state (core/sharding), {0, 1}: it has all of it; and
// among those that have parts of one model (core/model/cut.h), {0, 1}: it has the whole model.
struct Shard {
  int64_t rank = 0, world = 1;
  int64_t part = 0, parts = 1;
  friend auto operator<=>(const Shard&, const Shard&) = default;
};
TP_FIELDS(Shard, rank, world, part, parts)

}  // namespace tidepool
