#pragma once
// Which part of what ranks share one of them has.

#include <compare>
#include <cstdint>

#include "core/base/fields.h"

namespace tidepool {

// A rank's place among those that share the optimizer's state (core/sharding). {0, 1}: it has all of it.
struct Shard {
  int64_t rank = 0, world = 1;
  friend auto operator<=>(const Shard&, const Shard&) = default;
};
TP_FIELDS(Shard, rank, world)

}  // namespace tidepool
