#pragma once
// Messages (messages.h) as bytes in frames. The codec is one visitor of the field lists (message_fields.h):
// fields in their order, numbers little-endian, texts and lists with their count in front, tokens and
// trajectories as core/sample/codec.h has them, a body with the number of its kind in front. Nothing is
// optional and nothing may be left over: both ends have the same lists, which every frame says by a hash of
// them (WireSchema).

#include <cstdint>
#include <deque>
#include <vector>

#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::v1 {
class Frame;
}  // namespace tidepool::v1

namespace tidepool::workers {

// Names, types and order of all fields of all messages as one number.
uint64_t WireSchema();

// Messages that wait for a stream go together: a frame costs both ends more than what is in it. `out` gets
// batch[at] and those after it that fit `most` bytes; returns where the next frame begins. Only the first
// message may be larger. Messages: std::deque of ToWorker or FromWorker, std::vector of BatchRow.
// requires at < batch.size()
inline constexpr size_t kTogetherBytes = 256 << 10;
template <typename Messages>
size_t Pack(const Messages& batch, size_t at, size_t most, v1::Frame* out);

// All of a frame, in order. kFailedPrecondition: it is of a build with other messages. kInvalidArgument: a
// message is cut short or too long, or a value or a list in it is out of bounds. Message: one of those three.
template <typename Message>
StatusOr<std::vector<Message>> Unpack(const v1::Frame& in);

}  // namespace tidepool::workers
