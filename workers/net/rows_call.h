#pragma once
// Rows.Read of control.proto, both ends: payloads over the wire, in frames, as they lie in their files. Any
// thread.

#include <grpcpp/channel.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/storage/payload.h"
#include "proto/control.pb.h"
#include "workers/data/stored_rows.h"

namespace tidepool::workers {

// Answers `request` out of `files`, in frames of at most `most` bytes; false: `write` was, the caller is
// gone. A payload that cannot be read is said to be lost, and the next one follows.
bool ServeRows(storage::PayloadReader& files, const v1::ReadRowsRequest& request, size_t most,
               const std::function<bool(const v1::RowBytes&)>& write);

// kUnavailable: nobody answers; kDeadlineExceeded: in a time that grows with what is asked for; kDataLoss:
// the answer is not as long as the question; errors of who refuses. `inc`: of who asks.
StatusOr<PayloadsRead> AskForRows(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                                  Incarnation inc, const Enqs& which);

}  // namespace tidepool::workers
