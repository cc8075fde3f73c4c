#pragma once
// What a trainer says of a row that it was given: the controller compares it with what was stored.

#include <algorithm>

#include "core/sample/codec.h"
#include "scheduler/events.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

inline scheduler::event::GivenRow Given(const BatchRow& row) {
  scheduler::event::GivenRow given{row.trajectory.tid, sample::Digest(row.trajectory), 0};
  if (row.without_loss.empty()) return given;
  for (const auto& [version, tokens] : row.trajectory.VersionsWithLoss()) {
    if (std::ranges::find(row.without_loss, version) != row.without_loss.end()) given.masked += tokens;
  }
  return given;
}

}  // namespace tidepool::workers
