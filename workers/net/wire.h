#pragma once
// The door between generated protobuf types and our structs (workers/net/messages.h): a change on the
// wire touches wire.cc. FromWire checks what it can check without state and answers kInvalidArgument.

#include <deque>
#include <vector>

#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::v1 {
class FromWorker;
class ToWorker;
class ScoreRequest;
}  // namespace tidepool::v1

namespace tidepool::workers {

void ToWire(const FromWorker& in, v1::FromWorker* out);
void ToWire(const ToWorker& in, v1::ToWorker* out);
StatusOr<FromWorker> FromWire(const v1::FromWorker& in);
StatusOr<ToWorker> FromWire(const v1::ToWorker& in);

// Messages that wait for a stream go together: a frame costs both ends more than what is in it. `out` gets
// batch[at] and, behind it, those after it that fit kTogetherBytes; returns where the next frame begins. Only
// the first may be larger.
inline constexpr size_t kTogetherBytes = 256 << 10;
size_t ToWireTogether(const std::deque<ToWorker>& batch, size_t at, v1::ToWorker* out);
size_t ToWireTogether(const std::deque<FromWorker>& batch, size_t at, v1::FromWorker* out);
// All of a frame, in order; kInvalidArgument: one of them is wrong, or has others behind it.
StatusOr<std::vector<ToWorker>> FromWireTogether(const v1::ToWorker& in);
StatusOr<std::vector<FromWorker>> FromWireTogether(const v1::FromWorker& in);

void ToScoreRequest(const down::Grade& in, v1::ScoreRequest* out);

}  // namespace tidepool::workers
