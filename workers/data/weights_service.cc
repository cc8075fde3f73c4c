#include "workers/data/weights_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>

#include "core/base/loopback.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/auth.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"

namespace tidepool::workers {

struct WeightsServer::Impl final : v1::Weights::Service {
  std::string token;
  int64_t frame_bytes = 1 << 20;
  PublishedSource source;
  std::unique_ptr<Listener> listener;

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchWeightsRequest* request,
                     grpc::ServerWriter<v1::WeightsFrame>* writer) override {
    if (const Status s = listener->Admit(*context, "Fetch", token); !s.ok()) return ToGrpc(s);
    if (const Status s = CheckCertificate(*context, Name(CallerRole::kDevice)); !s.ok()) return ToGrpc(s);
    auto published = source(
        {{request->version().lineage(), request->version().number()}, StepNumber{request->state_step() - 1}});
    if (!published.ok()) return ToGrpc(published.status());
    int64_t total = 0, sent = 0;
    for (const auto& part : published->parts) total += static_cast<int64_t>(part.size());
    for (const auto& part : published->parts) {
      const auto size = static_cast<int64_t>(part.size());
      for (int64_t at = 0; at < size; at += frame_bytes) {
        v1::WeightsFrame frame;
        const int64_t n = std::min(frame_bytes, size - at);
        frame.set_offset(sent);
        if (sent == 0) {
          frame.set_digest(published->digest);
          frame.set_total_bytes(total);
        }
        frame.mutable_data()->resize(static_cast<size_t>(n));
        part.CopyTo(static_cast<size_t>(at), std::as_writable_bytes(std::span(*frame.mutable_data())));
        if (!writer->Write(frame)) return ToGrpc(Unavailable("Fetch: the reader went away"));
        sent += n;
      }
    }
    return grpc::Status::OK;
  }
};

WeightsServer::WeightsServer() : impl_(std::make_unique<Impl>()) {}
WeightsServer::~WeightsServer() {
  if (impl_->listener != nullptr) impl_->listener->Stop();
}
std::string WeightsServer::address() const { return impl_->listener->address(); }

StatusOr<std::unique_ptr<WeightsServer>> WeightsServer::Start(const std::string& bind,
                                                              const Credentials& credentials,
                                                              int64_t max_frame_bytes,
                                                              PublishedSource source) {
  if (!credentials.identity && !IsLoopback(bind))
    return FailedPrecondition(
        bind +
        " can be reached by others, and no certificates lie beside the token; take the whole folder "
        "RUN/security");
  std::unique_ptr<WeightsServer> server(new WeightsServer());
  server->impl_->token = credentials.token;
  server->impl_->frame_bytes = std::max<int64_t>(max_frame_bytes - 4096, 4096);  // room for the other fields
  server->impl_->source = std::move(source);
  TP_ASSIGN_OR_RETURN(server->impl_->listener, Listener::Open(bind, 0));
  grpc::ServerBuilder builder;
  builder.RegisterService(server->impl_.get());
  TP_RETURN_IF_ERROR(server->impl_->listener->Serve(builder, ServerSide(credentials.identity)));
  return server;
}

StatusOr<uint64_t> FetchBytes(const std::string& address, const Credentials& credentials,
                              const WantedBytes& wanted, std::span<const device::ByteStore> parts) {
  if (!credentials.identity && !IsLoopback(HostOf(address)))
    return FailedPrecondition(address +
                              " is on another host, and no certificates lie beside the token, so the call "
                              "would not be encrypted; take the whole folder RUN/security");
  size_t total = 0;
  for (const auto& part : parts) total += part.size();
  const std::string what = wanted.step.valid() ? "state of step " + std::to_string(wanted.step.value)
                                               : "weights of version " + ToString(wanted.version);
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // workers speak to each other, never through a proxy
  // A connection of its own: one that gRPC has kept may be dead without knowing it.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto tls = ClientSide(credentials.identity, Name(CallerRole::kDevice), &args);
  auto channel = grpc::CreateCustomChannel(address, tls, args);
  auto stub = v1::Weights::NewStub(channel);
  grpc::ClientContext context;
  AddToken(&context, credentials.token);
  // 100 MB/s, which a slow network has, and never less than a slow start needs.
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(30 + static_cast<int64_t>(total / 100'000'000)));
  v1::FetchWeightsRequest request;
  request.mutable_version()->set_lineage(wanted.version.lineage);
  request.mutable_version()->set_number(wanted.version.number);
  request.set_state_step(wanted.step.value + 1);
  auto reader = stub->Fetch(&context, request);
  v1::WeightsFrame frame;
  size_t at = 0, part = 0, in_part = 0;
  uint64_t digest = 0;
  Status wrong = OkStatus();
  while (reader->Read(&frame)) {
    const bool fits = static_cast<size_t>(frame.offset()) == at && at + frame.data().size() <= total;
    if (!fits || (at == 0 && static_cast<size_t>(frame.total_bytes()) != total)) {
      wrong = DataLoss(what + " from " + address + ": another size or order than expected");
      context.TryCancel();
      break;
    }
    if (at == 0) digest = frame.digest();
    for (std::string_view left = frame.data(); !left.empty();) {
      if (in_part == parts[part].size()) {
        ++part;
        in_part = 0;
        continue;
      }
      const size_t n = std::min(left.size(), parts[part].size() - in_part);
      parts[part].CopyFrom(in_part, std::as_bytes(std::span(left.data(), n)));
      left.remove_prefix(n);
      in_part += n;
      at += n;
    }
  }
  const Status end = FromGrpc(reader->Finish());
  TP_RETURN_IF_ERROR(wrong);
  TP_RETURN_IF_ERROR(end.At("fetch " + what));
  if (at != total) return DataLoss(what + " from " + address + ": cut short");
  return digest;
}

}  // namespace tidepool::workers
