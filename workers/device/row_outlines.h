#pragma once
// What the ranks of a training group tell each other of the rows that each has read: of each row its outline
// (core/sample/trajectory.h), or why it cannot be trained on. Pure; the bytes of others are checked.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/bad_row.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// Of the payloads of one rank, in the order of its rows.
std::string OutlinesOf(std::span<const StatusOr<sample::Trajectory>> read);
// `said`: by rank. Fills in the rows of ranks other than `rank`. kInvalidArgument: somebody could not read
// rows, and `bad` has these, on every rank the same. kInternal: what a rank said is no list of its rows.
Status TakeOutlines(std::span<const std::string> said, int64_t rank, std::vector<BatchRow>& rows,
                    std::vector<BadRow>& bad);

}  // namespace tidepool::workers
