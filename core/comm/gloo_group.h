#pragma once
// Gloo over sockets: the group of ranks on several hosts (CPU).

#include <memory>

#include "core/base/status.h"
#include "core/comm/collective.h"

namespace tidepool::comm {

// requires that all ranks are there. kUnavailable: their sockets do not reach each other.
StatusOr<std::unique_ptr<Collective>> MakeGlooGroup(const GroupOptions& options);

}  // namespace tidepool::comm
