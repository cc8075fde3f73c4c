#pragma once
// Messages (messages.h) as bytes in frames. The codec is one visitor of the field lists (message_fields.h):
// fields in their order, numbers little-endian, texts and lists with their count in front, tokens and
// trajectories as core/sample/codec.h has them, a body with the number of its kind in front. Nothing is
// optional and nothing may be left over: both ends have the same lists, which every frame says by a hash of
// them (WireSchema).

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
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
// message may be larger. Messages: std::deque of ToWorker or FromWorker.
// requires at < batch.size()
template <typename Messages>
size_t Pack(const Messages& batch, size_t at, size_t most, v1::Frame* out);

// The whole batch as frames of about `most` bytes or fewer: a message that is larger is cut. False: `write`
// was false. Messages: as above, or std::vector of BatchRow.
inline constexpr size_t kFrameBytes = 256
                                      << 10;  // of a control stream: less than any security.max_control_bytes
template <typename Messages>
bool WriteFrames(const Messages& batch, size_t most, const std::function<bool(const v1::Frame&)>& write);

// Puts the messages of one stream together again. One thread at a time.
class FrameReader {
 public:
  // More than a line of data (16 MiB) becomes by its fields.
  static constexpr size_t kLargestMessage = 64 << 20;
  explicit FrameReader(size_t most = kLargestMessage) : most_(most) {}
  // The messages that end in this frame, in order; none in the middle of one that was cut. Errors of Unpack;
  // kInvalidArgument: a message has more than `most` bytes. Message: ToWorker, FromWorker or BatchRow.
  template <typename Message>
  StatusOr<std::vector<Message>> Take(v1::Frame& frame);
  [[nodiscard]] bool within() const { return !begun_.empty(); }  // a message

 private:
  size_t most_;
  std::string begun_;
};

// Reads rows until `read` is false, and gives them the prompts that they share. Errors of FrameReader.
StatusOr<std::vector<BatchRow>> ReadRows(const std::function<bool(v1::Frame*)>& read);

// Between ranks of one group, which are one build: in no frame, and without the hash. kInternal: it is none.
std::string AsBytes(const FetchedRows& fetched);
StatusOr<FetchedRows> FetchedFrom(std::string_view bytes);

// All of a frame, in order. kFailedPrecondition: it is of a build with other messages. kInvalidArgument: a
// message is cut short or too long, or a value or a list in it is out of bounds. Message: ToWorker or
// FromWorker.
template <typename Message>
StatusOr<std::vector<Message>> Unpack(const v1::Frame& in);

}  // namespace tidepool::workers
