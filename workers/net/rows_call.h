#pragma once
// Rows.Read of control.proto, both ends: payloads over the wire, in frames, as they lie in their files. Any
// thread.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
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

// Answers `request` by what `bring` reads, in frames of at most `most` bytes. A payload that is not there any
// more is said to be lost, and the next one follows. kUnavailable: one cannot be read now, or `write` was
// false, the caller is gone.
Status ServeRows(const ReadPayload& bring, const v1::ReadRowsRequest& request, size_t most,
                 const std::function<bool(const v1::RowBytes&)>& write);

// How long the answer may take: it grows with what is asked for.
std::chrono::seconds PatienceForRows(const Enqs& which);
// `context`: of this call, with token and deadline. `of`: the list that the payloads are in. kUnavailable:
// nobody answers, or they cannot be read there now; kDeadlineExceeded; kAborted: `go_on` said no, between two
// frames; kDataLoss: the answer is not as long as the question; errors of who refuses.
StatusOr<PayloadsRead> AskForRows(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                                  const v1::FetchRowsRequest& of, const Enqs& which,
                                  const std::function<bool()>& go_on);

}  // namespace tidepool::workers
