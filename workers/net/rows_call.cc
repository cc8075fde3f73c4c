#include "workers/net/rows_call.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/sample/codec.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/rpc_status.h"

namespace tidepool::workers {

Status ServeRows(const ReadPayload& bring, const v1::ReadRowsRequest& request, size_t most,
                 const std::function<bool(const v1::RowBytes&)>& write) {
  for (const v1::PayloadPlace& place : request.places()) {
    const int64_t bytes = std::min(place.bytes(), sample::kMaxTrajectoryBytes);
    for (int64_t at = 0;;) {
      const int64_t n = std::min(bytes - at, static_cast<int64_t>(most));
      v1::RowBytes frame;
      auto piece = bring(place.file(), place.offset() + at, n);
      if (piece.ok()) {
        const auto got = static_cast<int64_t>(piece->bytes.size());
        at += got;
        frame.set_last(at == bytes || got < n);  // a file that ends before: who asks sees it
        frame.set_schema(piece->schema);
        frame.set_data(std::move(piece->bytes));
      } else if (piece.status().code() == StatusCode::kNotFound ||
                 piece.status().code() == StatusCode::kDataLoss) {
        frame.set_last(true);
        frame.set_lost(piece.status().message());
      } else {
        return Unavailable(piece.status().message());
      }
      if (!write(frame)) return Unavailable("the worker went away");
      if (frame.last()) break;
    }
  }
  return OkStatus();
}

std::chrono::seconds PatienceForRows(const Enqs& which) {
  constexpr int64_t kSlowest = 1 << 20;  // bytes a second
  int64_t bytes = 0;
  for (const record::Enq* enq : which) bytes += enq->payload_bytes;
  return std::chrono::seconds(60 + bytes / kSlowest);
}

StatusOr<PayloadsRead> AskForRows(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                                  const v1::FetchRowsRequest& of, const Enqs& which,
                                  const std::function<bool()>& go_on) {
  v1::ReadRowsRequest request;
  *request.mutable_of() = of;
  for (const record::Enq* enq : which) {
    v1::PayloadPlace& place = *request.add_places();
    place.set_file(enq->payload_file);
    place.set_offset(enq->payload_offset);
    place.set_bytes(enq->payload_bytes);
  }
  const auto stub = v1::Rows::NewStub(channel);
  const auto reader = stub->Read(&context, request);
  PayloadsRead read;
  storage::PayloadBytes payload;
  for (v1::RowBytes frame; reader->Read(&frame); frame.Clear()) {
    if (read.size() == which.size() || static_cast<int64_t>(payload.bytes.size() + frame.data().size()) >
                                           which[read.size()]->payload_bytes) {
      context.TryCancel();
      return DataLoss("read of payloads: more bytes came than were asked for");
    }
    if (!go_on()) {
      context.TryCancel();
      return Aborted("the read of rows was called off");
    }
    payload.bytes += frame.data();
    if (!frame.last()) continue;
    payload.schema = frame.schema();
    auto whole = std::exchange(payload, {});
    read.push_back(frame.lost().empty() ? StatusOr<storage::PayloadBytes>(std::move(whole))
                                        : NotFound(frame.lost()));
  }
  TP_RETURN_IF_ERROR(FromGrpc(reader->Finish()).At("read of payloads"));
  if (read.size() != which.size())
    return DataLoss("read of payloads: the answer ends before its last payload");
  return read;
}

}  // namespace tidepool::workers
