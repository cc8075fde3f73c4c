// Reward servers that speak proto/reward.proto.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/observe/log.h"
#include "proto/reward.grpc.pb.h"
#include "workers/net/bounded_text.h"
#include "workers/side/reward_server.h"

namespace tidepool::workers {
namespace {

v1::ScoreRequest ToWire(const tasks::RewardInput& in) {
  v1::ScoreRequest out;
  out.set_prompt(in.prompt);
  out.set_answer(in.answer);
  for (const auto& [name, value] : in.fields) (*out.mutable_fields())[name] = value;
  out.set_text(in.text);
  out.set_response_tokens(in.response_tokens);
  out.set_max_new_tokens(in.max_new_tokens);
  out.set_ended(in.ended);
  out.set_sample(in.sample);
  for (const tasks::Message& m : in.messages) {
    v1::Message* message = out.add_messages();
    message->set_role(m.role);
    message->set_content(m.content);
  }
  out.set_rendered_prompt(in.rendered_prompt);
  out.set_row(in.row);
  out.set_line(in.line);
  out.set_file(in.file);
  out.set_held_out(in.held_out);
  return out;
}

tasks::Verdict FromWire(const std::string& name, const v1::ScoreReply& reply) {
  using Outcome = tasks::Verdict::Outcome;
  if (reply.outcome() != v1::ScoreReply::OK)
    return {Outcome::kData, 0, name + ": " + Bounded(reply.detail())};
  if (!std::isfinite(reply.score())) {
    return {Outcome::kInfra, 0,
            name + " gave the score " + std::to_string(reply.score()) + ", which is no finite number"};
  }
  return {Outcome::kOk, reply.score(), Bounded(reply.detail())};
}

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote
// host: Connection refused" -> "Connection refused"
std::string Cause(std::string_view message) {
  for (const std::string_view before :
       {"last error: ", "UNKNOWN: ", "UNAVAILABLE: ", "Failed to connect to remote host: "}) {
    if (const size_t at = message.rfind(before); at != std::string_view::npos)
      message.remove_prefix(at + before.size());
  }
  return message.empty() ? "no answer" : std::string(message);
}

class GrpcServer final : public RewardServer {
 public:
  GrpcServer(const RewardFunction& function, bool batches)
      : name_(function.name), endpoint_(function.endpoint), batches_(batches) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // The waits are ours (PatientServer): the channel dials as soon as it is asked again.
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    stub_ = v1::Reward::NewStub(
        grpc::CreateCustomChannel(function.endpoint, grpc::InsecureChannelCredentials(), args));
  }

  bool takes_batches() const override { return batches_; }

  StatusOr<Verdicts> Ask(RewardInputs inputs, SteadyTime deadline, const std::stop_token& stop) override {
    if (batches_) {
      v1::ScoreBatchRequest request;
      for (const auto* input : inputs) *request.add_samples() = ToWire(*input);
      v1::ScoreBatchReply reply;
      const grpc::Status status = Call(&v1::Reward::Stub::ScoreBatch, request, &reply, deadline, stop);
      if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) {
        TP_RETURN_IF_ERROR(FromGrpc(status));
        if (static_cast<size_t>(reply.replies_size()) != inputs.size()) {
          return Internal("ScoreBatch gave " + std::to_string(reply.replies_size()) + " replies to " +
                          std::to_string(inputs.size()) + " samples");
        }
        Verdicts verdicts;
        for (const v1::ScoreReply& one : reply.replies()) verdicts.push_back(FromWire(name_, one));
        return verdicts;
      }
      if (batches_.exchange(false)) {
        observe::Log(observe::LogLevel::kWarn, "reward_server_without_batches",
                     {{"function", name_}, {"why", "it has no ScoreBatch; it gets one sample a call"}});
      }
    }
    Verdicts verdicts;
    for (const auto* input : inputs) {
      v1::ScoreReply reply;
      TP_RETURN_IF_ERROR(FromGrpc(Call(&v1::Reward::Stub::Score, ToWire(*input), &reply, deadline, stop)));
      verdicts.push_back(FromWire(name_, reply));
    }
    return verdicts;
  }

 private:
  template <typename Method, typename Request, typename Reply>
  grpc::Status Call(Method method, const Request& request, Reply* reply, SteadyTime deadline,
                    const std::stop_token& stop) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(
                             deadline - std::chrono::steady_clock::now()));
    const std::stop_callback on_stop(stop, [&] { context.TryCancel(); });
    return (stub_.get()->*method)(&context, request, reply);
  }
  [[nodiscard]] Status FromGrpc(const grpc::Status& status) const {
    if (status.ok()) return OkStatus();
    const auto code = static_cast<StatusCode>(status.error_code());
    if (code != StatusCode::kUnavailable) {
      return {code, "it answered with the gRPC error " + std::string(StatusCodeName(code)) + ": " +
                        status.error_message()};
    }
    for (const char* sign : {"Failed parsing HTTP/2", "http1.x server"}) {
      if (status.error_message().find(sign) == std::string::npos) continue;
      return InvalidArgument(
          "a server that speaks HTTP/1, not gRPC, answers there; for JSON over HTTP write endpoint: "
          "\"http://" +
          endpoint_ + "/\"");
    }
    return {code, Cause(status.error_message())};
  }

  const std::string name_, endpoint_;
  std::unique_ptr<v1::Reward::Stub> stub_;
  std::atomic<bool> batches_;
};

}  // namespace

std::unique_ptr<RewardServer> ConnectGrpc(const RewardFunction& function, bool batches) {
  return std::make_unique<GrpcServer>(function, batches);
}

}  // namespace tidepool::workers
