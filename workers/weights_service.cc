#include "workers/weights_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>

#include "core/base/hash.h"
#include "proto/control.grpc.pb.h"
#include "workers/rpc_status.h"

namespace tidepool::workers {

struct WeightsServer::Impl final : v1::Weights::Service {
  std::string token;
  int64_t frame_bytes = 1 << 20;
  PublishedSource source;
  std::unique_ptr<grpc::Server> server;
  std::string address;

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchWeightsRequest* request,
                     grpc::ServerWriter<v1::WeightsFrame>* writer) override {
    const auto& metadata = context->client_metadata();
    const auto it = metadata.find("authorization");
    if (it == metadata.end() || !ConstantTimeEqual(std::string_view(it->second.data(), it->second.size()), "Bearer " + token)) {
      return ToGrpc(Unauthenticated("Fetch: no token of a device worker of this job"));
    }
    auto published = source({request->version().lineage(), request->version().number()});
    if (!published.ok()) return ToGrpc(published.status());
    const auto total = static_cast<int64_t>(published->bytes.size());
    for (int64_t at = 0; at < total; at += frame_bytes) {
      v1::WeightsFrame frame;
      const int64_t n = std::min(frame_bytes, total - at);
      frame.set_offset(at);
      if (at == 0) {
        frame.set_digest(published->digest);
        frame.set_total_bytes(total);
      }
      frame.set_data(published->bytes.data() + at, static_cast<size_t>(n));
      if (!writer->Write(frame)) return ToGrpc(Unavailable("Fetch: the reader went away"));
    }
    return grpc::Status::OK;
  }
};

WeightsServer::WeightsServer() : impl_(std::make_unique<Impl>()) {}
WeightsServer::~WeightsServer() {
  if (impl_->server != nullptr) {
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    impl_->server->Wait();
  }
}
std::string WeightsServer::address() const { return impl_->address; }

StatusOr<std::unique_ptr<WeightsServer>> WeightsServer::Start(const std::string& bind, const std::string& token,
                                                              int64_t max_frame_bytes, PublishedSource source) {
  std::unique_ptr<WeightsServer> server(new WeightsServer());
  server->impl_->token = token;
  server->impl_->frame_bytes = std::max<int64_t>(max_frame_bytes - 4096, 4096);  // room for the other fields
  server->impl_->source = std::move(source);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  builder.AddListeningPort(bind + ":0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(server->impl_.get());
  server->impl_->server = builder.BuildAndStart();
  if (server->impl_->server == nullptr) return Unavailable("no port on " + bind + " for the weights service");
  server->impl_->address = bind + ":" + std::to_string(port);
  return server;
}

Status FetchWeights(const std::string& address, const std::string& token, Version version, std::span<std::byte> arena) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // workers speak to each other, never through a proxy
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  auto stub = v1::Weights::NewStub(channel);
  grpc::ClientContext context;
  AddToken(&context, token);
  // A tenth of the rate this link is known for (docs/perf.md), and never less than a slow start needs.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30 + static_cast<int64_t>(arena.size() / 100'000'000)));
  v1::FetchWeightsRequest request;
  request.mutable_version()->set_lineage(version.lineage);
  request.mutable_version()->set_number(version.number);
  auto reader = stub->Fetch(&context, request);
  v1::WeightsFrame frame;
  size_t at = 0;
  Status wrong = OkStatus();
  while (reader->Read(&frame)) {
    const bool fits = static_cast<size_t>(frame.offset()) == at && at + frame.data().size() <= arena.size();
    if (!fits || (at == 0 && static_cast<size_t>(frame.total_bytes()) != arena.size())) {
      wrong = DataLoss("weights of version " + ToString(version) + " from " + address + " have another size or order than expected");
      context.TryCancel();
      break;
    }
    std::memcpy(arena.data() + at, frame.data().data(), frame.data().size());
    at += frame.data().size();
  }
  const Status end = FromGrpc(reader->Finish());
  TP_RETURN_IF_ERROR(wrong);
  TP_RETURN_IF_ERROR(end.At("fetch weights of version " + ToString(version)));
  if (at != arena.size()) return DataLoss("weights of version " + ToString(version) + " from " + address + " are cut short");
  return OkStatus();
}

}  // namespace tidepool::workers
