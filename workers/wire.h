#pragma once
// The door between generated protobuf types and our structs (workers/messages.h): a change on the
// wire touches wire.cc. FromWire checks what it can check without state and answers kInvalidArgument.

#include <vector>

#include "core/base/status.h"
#include "workers/messages.h"

namespace tidepool::v1 {
class FromWorker;
class ToWorker;
class Row;
class ScoreRequest;
}  // namespace tidepool::v1

namespace tidepool::workers {

void ToWire(const FromWorker& in, v1::FromWorker* out);
void ToWire(const ToWorker& in, v1::ToWorker* out);
void ToWire(const BatchRow& in, v1::Row* out);
StatusOr<FromWorker> FromWire(const v1::FromWorker& in);
StatusOr<ToWorker> FromWire(const v1::ToWorker& in);
StatusOr<BatchRow> FromWire(const v1::Row& in);
void ToScoreRequest(const down::Grade& in, v1::ScoreRequest* out);

}  // namespace tidepool::workers
