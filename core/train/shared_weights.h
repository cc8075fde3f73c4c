#pragma once
// The weights of ranks of one host that share them (train.zero: 3): one arena in the host's shared memory,
// which every rank reads where it stands, and writes in its own interval of the space (core/sharding) alone.
// So the host has them once, however many ranks it has, and a block that is about to be used is there.
//
// The order of a step (core/train/group_update.h) keeps readers and writers apart: no rank begins to write
// before all have ended their backward, and none goes on to read before all have written.
//
// Each group has a memory of its own: a rank that was taken for lost and goes on after all writes into that
// of a group which nobody is in any more. It has no name once all have it, so it goes with the last of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/device/page_buffer.h"

namespace tidepool::train {

// Not thread-safe.
class SharedWeights {
 public:
  // Zeros, in this process's own memory: to be filled by the rank with what all of them start from.
  // `elements` of `each` bytes. kResourceExhausted.
  static StatusOr<std::unique_ptr<SharedWeights>> Create(int64_t elements, int64_t each);

  // Where the weights stand, for as long as this lives: whole, whoever keeps them.
  [[nodiscard]] std::span<std::byte> arena() const { return arena_.bytes(); }
  // The ranks of the group give each its interval to one memory, in a folder as of comm::GroupOptions, which
  // takes the place of their own. Nothing where these ranks have one already. kUnimplemented: the group's
  // ranks do not share a host's memory. Other errors of the group and of comm::HostFile. After an error every
  // rank keeps what it had.
  Status Share(comm::Collective& group, const std::string& folder);
  // Zeros in this process's own memory again: before other weights are read into it.
  Status Leave();
  [[nodiscard]] int64_t own_bytes() const;  // that no other rank has; 0 where they are shared

 private:
  SharedWeights(device::PageBuffer arena, int64_t elements, int64_t each)
      : arena_(std::move(arena)), elements_(elements), each_(each) {}
  Status MapOver(int flags, int fd);

  device::PageBuffer arena_;
  const int64_t elements_, each_;
  std::string shared_;  // the name that its memory had; empty: it is this rank's own
};

}  // namespace tidepool::train
