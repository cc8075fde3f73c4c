#include "workers/net/join_service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "core/base/disk_thread.h"
#include "core/base/loopback.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

constexpr int kMostBytes = 64 << 10;  // a request and an answer have a few thousand
constexpr std::string_view kScheme = "Bearer ";
// Less than a stranger may stay (Listener::kPatience).
constexpr auto kAnswerWithin = std::chrono::seconds(4);

}  // namespace

struct JoinServer::Impl final : v1::Newcomers::Service {
  JoinServerOptions options;
  Admits admits;
  std::unique_ptr<Listener> listener;
  DiskThread disk;

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override {
    const auto& metadata = context->client_metadata();
    const auto it = metadata.find("authorization");
    const std::string_view value =
        it == metadata.end() ? "" : std::string_view(it->second.data(), it->second.size());
    if (!value.starts_with(kScheme)) return ToGrpc(Unauthenticated("Join: no join token"));
    const auto admitted = disk.DoWithin(
        kAnswerWithin, "join",
        [admits = admits, id = request->id(), secret = std::string(value.substr(kScheme.size())),
         signing = request->signing_request()] { return admits(id, secret, signing); });
    if (!admitted)
      return ToGrpc(Unavailable("Join: the controller's disk does not answer; make another join token"));
    if (!admitted->ok()) return ToGrpc(admitted->status());
    const Admitted& newcomer = **admitted;
    listener->Authenticated(context->peer());
    reply->set_authority(newcomer.certified.authority);
    reply->set_certificate(newcomer.certified.certificate);
    reply->set_token(newcomer.token);
    reply->set_believed_in_s(newcomer.certified.believed_in.count());
    return grpc::Status::OK;
  }
};

JoinServer::JoinServer() : impl_(std::make_unique<Impl>()) {}
JoinServer::~JoinServer() { Stop(); }

void JoinServer::Stop() {
  if (impl_->listener != nullptr) impl_->listener->Stop();
}

StatusOr<std::unique_ptr<JoinServer>> JoinServer::Start(const JoinServerOptions& options, Admits admits) {
  std::unique_ptr<JoinServer> server(new JoinServer());
  server->impl_->options = options;
  server->impl_->admits = std::move(admits);
  TP_ASSIGN_OR_RETURN(server->impl_->listener, Listener::Open(options.bind, 0));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostBytes);
  builder.RegisterService(server->impl_.get());
  TP_RETURN_IF_ERROR(server->impl_->listener->Serve(builder, ServerSideForAnyone(options.identity)));
  return server;
}

std::string JoinServer::address() const {
  const std::string& bound = impl_->listener->address();
  if (impl_->options.advertise.empty()) return bound;
  return JoinHostPort(impl_->options.advertise, std::stoll(bound.substr(bound.rfind(':') + 1)));
}

Status Join(const JoinToken& token, const std::string& dir) {
  SetUpGrpc();
  const std::string role = Name(token.scope.role);
  const auto request = x509::MakeRequest();
  if (!request) return Internal("a key could not be made: " + x509::WhatFailed());
  // Before the token is used up. What is there may be somebody's identity that works.
  std::error_code error;
  if (std::filesystem::exists(dir, error) && !std::filesystem::is_empty(dir, error))
    return InvalidArgument(dir + ": is not empty; name a new folder for the certificate and its key");
  std::filesystem::create_directories(dir, error);
  if (!error) std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");

  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // to the run's own process, never through a proxy
  args.SetMaxReceiveMessageSize(kMostBytes);
  args.SetSslTargetNameOverride(CertifiedName(kControllerRole));
  auto channel = grpc::CreateCustomChannel(
      token.join,
      grpc::SslCredentials({.pem_root_certs = token.authority, .pem_private_key = {}, .pem_cert_chain = {}}),
      args);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5)))
    return Unavailable("nobody with a certificate of run " + token.run_id + " answers at " + token.join +
                       "; does the network lead there, and is the run's controller still the same?");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  AddToken(&context, token.secret);
  v1::JoinRequest asked;
  asked.set_id(token.id);
  asked.set_signing_request(request->pem);
  v1::JoinReply reply;
  TP_RETURN_IF_ERROR(FromGrpc(v1::Newcomers::NewStub(channel)->Join(&context, asked, &reply)).At(token.join));
  TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + role + ".key", x509::Pem(request->key.get())));
  TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + role + ".token", reply.token() + "\n"));
  TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + role + ".crt", reply.certificate()));
  TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/authority.crt", reply.authority()));
  std::this_thread::sleep_for(std::chrono::seconds(std::clamp<int64_t>(reply.believed_in_s(), 0, 60)));
  return ReadIdentity(dir + "/" + role + ".token").status();
}

}  // namespace tidepool::workers
