#include "workers/side/vector_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"
#include "core/policy/fragment.h"
#include "proto/vector.grpc.pb.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"

namespace tidepool::workers {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

template <typename T>
std::string Pack(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
StatusOr<std::vector<T>> Unpack(const std::string& bytes) {
  if (bytes.size() % sizeof(T) != 0)
    return InvalidArgument("environments: a row of numbers is cut in the middle of one");
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Far from any length that a caller could mean.
constexpr size_t kMaxInstances = 1 << 16;

}  // namespace

// --- server ---

struct VectorServer::Impl final : v1::VectorEnvironments::Service {
  VectorServerOptions options;
  std::unique_ptr<Listener> listener;
  std::atomic<int64_t> steps{0};
  Mutex mu;
  MakeHost make TP_GUARDED_BY(mu);
  std::optional<PluginCall> exchange TP_GUARDED_BY(mu);  // none: the host limits its calls itself
  CallWatch watch;

  // One caller's.
  struct Played {
    std::unique_ptr<policy::EnvironmentHost> host;  // of the first session that is opened
    std::map<int64_t, size_t> open;                 // sessions, with their instances
  };

  grpc::Status Play(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::PlayReply, v1::PlayRequest>* stream) override {
    if (const Status s = listener->Admit(*context, "Play", options.token); !s.ok()) return ToGrpc(s);
    Played played;
    v1::PlayRequest request;
    v1::PlayReply reply;
    while (stream->Read(&request)) {
      reply.Clear();
      auto call = Watched();
      std::vector<std::pair<policy::EnvironmentHost::Action, v1::SessionReply*>> steps_asked;
      for (const v1::SessionRequest& wanted : request.sessions()) {
        v1::SessionReply& answer = *reply.add_sessions();
        answer.set_session(wanted.session());
        Tell(Answer(wanted, played, answer, steps_asked), answer);
      }
      if (!steps_asked.empty()) Step(played, steps_asked);
      call.reset();
      if (!stream->Write(reply)) break;
    }
    return grpc::Status::OK;
  }

  std::unique_ptr<CallWatch::Call> Watched() {
    const MutexLock lock(mu);
    return exchange ? std::make_unique<CallWatch::Call>(watch, *exchange) : nullptr;
  }

  static void Tell(const Status& done, v1::SessionReply& answer) {
    if (done.ok()) return;
    answer.set_code(static_cast<int32_t>(done.code()));
    answer.set_error(done.message());
  }

  // A step is left for the call that moves all sessions.
  Status Answer(const v1::SessionRequest& wanted, Played& played, v1::SessionReply& answer,
                auto& steps_asked) {
    if (wanted.what_case() == v1::SessionRequest::kOpen) {
      TP_ASSIGN_OR_RETURN(const auto states, policy::DecodeStates(wanted.open()));
      if (states.empty() || states.size() > kMaxInstances)
        return InvalidArgument("environments: a session has 1 to 65536 instances");
      if (!played.open.contains(wanted.session()) &&
          static_cast<int64_t>(played.open.size()) >= options.max_sessions) {
        return ResourceExhausted("environments: " + std::to_string(options.max_sessions) +
                                 " sessions are open on this stream");
      }
      if (played.host == nullptr) {
        const MutexLock lock(mu);
        if (!make) return Unavailable("environments: this worker has not been told its job yet");
        played.host = make();
      }
      TP_ASSIGN_OR_RETURN(const std::vector<float> first, played.host->Open(wanted.session(), states));
      answer.set_observations(Pack(first));
      played.open[wanted.session()] = states.size();
      return OkStatus();
    }
    if (!played.open.contains(wanted.session()))
      return NotFound("environments: session " + std::to_string(wanted.session()) + " is not open");
    if (wanted.what_case() == v1::SessionRequest::kClose) {
      played.open.erase(wanted.session());
      TP_ASSIGN_OR_RETURN(const auto states, played.host->Close(wanted.session()));
      answer.set_states(policy::EncodeStates(states));
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(std::vector<float> actions, Unpack<float>(wanted.step()));
    steps_asked.push_back({{wanted.session(), std::move(actions)}, &answer});
    return OkStatus();
  }

  void Step(Played& played, auto& steps_asked) {
    std::vector<policy::EnvironmentHost::Action> actions;
    for (auto& [action, answer] : steps_asked) actions.push_back(std::move(action));
    const auto moved = played.host->Step(actions);
    for (size_t i = 0; i < steps_asked.size(); ++i) {
      v1::SessionReply& answer = *steps_asked[i].second;
      const Status done = moved.ok() ? (*moved)[i].status : moved.status();
      if (!done.ok()) {
        Tell(done, answer);
        continue;
      }
      const environments::VectorStep& step = (*moved)[i].step;
      steps += static_cast<int64_t>(step.rewards.size());
      answer.set_observations(Pack(step.observations));
      answer.set_rewards(Pack(step.rewards));
      answer.set_flags(Pack(step.flags));
      answer.set_final_observations(Pack(step.final_observations));
      answer.set_scores(Pack(step.scores));
    }
  }
};

VectorServer::VectorServer() : impl_(std::make_unique<Impl>()) {}
VectorServer::~VectorServer() {
  if (impl_->listener != nullptr) impl_->listener->Stop();
}
std::string VectorServer::address() const { return impl_->listener->address(); }
int64_t VectorServer::steps() const { return impl_->steps; }

CallWatch& VectorServer::watch() { return impl_->watch; }
void VectorServer::Stop() { impl_->listener->Stop(); }

Status VectorServer::Serve(const environments::VectorOptions& environment, double step_timeout_s) {
  TP_ASSIGN_OR_RETURN(const auto spec, environments::FindVectorEnvironment(environment));
  const MutexLock lock(impl_->mu);
  impl_->exchange = {.what = environments::LabelOf(spec),
                     .on = "a start or a step of its instances",
                     .limit_s = step_timeout_s,
                     .key = "environment.step_timeout_s"};
  impl_->make = [environment] { return std::make_unique<policy::LocalHost>(environment); };
  return OkStatus();
}

void VectorServer::Serve(MakeHost make) {
  const MutexLock lock(impl_->mu);
  impl_->exchange.reset();
  impl_->make = std::move(make);
}

StatusOr<std::unique_ptr<VectorServer>> VectorServer::Start(const VectorServerOptions& options) {
  std::unique_ptr<VectorServer> server(new VectorServer());
  server->impl_->options = options;
  TP_ASSIGN_OR_RETURN(server->impl_->listener, Listener::Open(options.bind, 0));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.RegisterService(server->impl_.get());
  TP_RETURN_IF_ERROR(server->impl_->listener->Serve(builder, grpc::InsecureServerCredentials()));
  return server;
}

// --- client ---

struct RemoteHost::Impl {
  std::string address, token;
  double timeout_s = 60;
  int64_t max_message_bytes = 4 << 20;
  std::unique_ptr<v1::VectorEnvironments::Stub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PlayRequest, v1::PlayReply>> stream;
  v1::PlayRequest request;
  v1::PlayReply reply;

  // A stream has no deadline of a single exchange: this thread looks five times a second and cancels one that
  // is late.
  Mutex mu;
  Condition wake;
  std::chrono::steady_clock::time_point late TP_GUARDED_BY(mu) = std::chrono::steady_clock::time_point::max();
  bool timed_out TP_GUARDED_BY(mu) = false;
  std::jthread watch;  // waits: its own wait ends with the stop token

  void Watch(const std::stop_token& stop) {
    const MutexLock lock(mu);
    while (!stop.stop_requested()) {
      wake.WaitFor(mu, stop, std::chrono::milliseconds(200));
      if (stop.stop_requested() || std::chrono::steady_clock::now() < late) continue;
      timed_out = true;
      late = std::chrono::steady_clock::time_point::max();
      if (context != nullptr) context->TryCancel();
    }
  }
  void SetLate(std::chrono::steady_clock::time_point when) {
    const MutexLock lock(mu);
    late = when;
  }

  void Connect() {
    if (stream != nullptr) return;
    if (stub == nullptr) {
      grpc::ChannelArguments args;
      args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // workers speak to each other, never through a proxy
      args.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
      stub = v1::VectorEnvironments::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    }
    const MutexLock lock(mu);
    context = std::make_unique<grpc::ClientContext>();  // waits: Watch cancels an exchange after timeout_s
    AddToken(context.get(), token);
    timed_out = false;
    stream = stub->Play(context.get());
  }
  // The stream is over; `cancel`: because we will not go on with it.
  Status Broken(bool cancel = false) {
    if (cancel) context->TryCancel();
    const Status end = FromGrpc(stream->Finish());
    bool late_answer = false;
    {
      const MutexLock lock(mu);
      late_answer = timed_out;
      stream.reset();
      context.reset();
    }
    if (late_answer)
      return DeadlineExceeded("the environments at " + address + " did not answer within " +
                              std::to_string(timeout_s) + " s");
    if (end.code() == StatusCode::kUnauthenticated) return end;
    return Unavailable("the environments at " + address + " are gone" +
                       (end.ok() || end.message().empty() ? "" : ": " + end.message()));
  }
  Status Exchange() {
    Connect();
    SetLate(std::chrono::steady_clock::now() +
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                std::chrono::duration<double>(timeout_s)));
    const bool answered = stream->Write(request) && stream->Read(&reply);
    SetLate(std::chrono::steady_clock::time_point::max());
    if (!answered) return Broken();
    if (reply.sessions_size() != request.sessions_size()) {
      (void)Broken(/*cancel=*/true);
      return Unavailable("the environments at " + address +
                         " answered for other sessions than they were asked about");
    }
    return OkStatus();
  }
  static Status Of(const v1::SessionReply& r) {
    return r.code() == 0 ? OkStatus() : Status(static_cast<StatusCode>(r.code()), r.error());
  }
};

RemoteHost::RemoteHost(std::string address, std::string token, double step_timeout_s,
                       int64_t max_message_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->address = std::move(address);
  impl_->token = std::move(token);
  impl_->timeout_s = step_timeout_s;
  impl_->max_message_bytes = max_message_bytes;
  impl_->watch = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->Watch(stop); });
}
RemoteHost::~RemoteHost() {
  impl_->watch.request_stop();
  impl_->watch.join();  // waits: it was asked to stop
  if (impl_->stream != nullptr) (void)impl_->Broken(/*cancel=*/true);
}
const std::string& RemoteHost::address() const { return impl_->address; }

StatusOr<std::vector<float>> RemoteHost::Open(int64_t session,
                                              const std::vector<environments::InstanceState>& states) {
  impl_->request.Clear();
  v1::SessionRequest& r = *impl_->request.add_sessions();
  r.set_session(session);
  r.set_open(policy::EncodeStates(states));
  TP_RETURN_IF_ERROR(impl_->Exchange());
  TP_RETURN_IF_ERROR(Impl::Of(impl_->reply.sessions(0)));
  return Unpack<float>(impl_->reply.sessions(0).observations());
}

StatusOr<std::vector<policy::EnvironmentHost::Moved>> RemoteHost::Step(const std::vector<Action>& actions) {
  impl_->request.Clear();
  for (const Action& a : actions) {
    v1::SessionRequest& r = *impl_->request.add_sessions();
    r.set_session(a.session);
    r.set_step(Pack(a.actions));
  }
  TP_RETURN_IF_ERROR(impl_->Exchange());
  std::vector<Moved> out(actions.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const v1::SessionReply& r = impl_->reply.sessions(static_cast<int>(i));
    environments::VectorStep& s = out[i].step;
    out[i].session = r.session();
    out[i].status = Impl::Of(r);
    // Of the task itself, or of a service of its own (kAborted); all else is of the worker.
    const StatusCode code = out[i].status.code();
    if (code != StatusCode::kDataLoss && code != StatusCode::kInvalidArgument && code != StatusCode::kAborted)
      TP_RETURN_IF_ERROR(out[i].status);
    TP_ASSIGN_OR_RETURN(s.observations, Unpack<float>(r.observations()));
    TP_ASSIGN_OR_RETURN(s.rewards, Unpack<float>(r.rewards()));
    TP_ASSIGN_OR_RETURN(s.flags, Unpack<uint8_t>(r.flags()));
    TP_ASSIGN_OR_RETURN(s.final_observations, Unpack<float>(r.final_observations()));
    TP_ASSIGN_OR_RETURN(s.scores, Unpack<double>(r.scores()));
  }
  return out;
}

StatusOr<std::vector<environments::InstanceState>> RemoteHost::Close(int64_t session) {
  if (impl_->stream == nullptr) return Unavailable("the environments at " + impl_->address + " are gone");
  impl_->request.Clear();
  v1::SessionRequest& r = *impl_->request.add_sessions();
  r.set_session(session);
  r.set_close(true);
  TP_RETURN_IF_ERROR(impl_->Exchange());
  TP_RETURN_IF_ERROR(Impl::Of(impl_->reply.sessions(0)));
  return policy::DecodeStates(impl_->reply.sessions(0).states());
}

}  // namespace tidepool::workers
