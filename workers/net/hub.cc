#include "workers/net/hub.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

constexpr auto kHelloDeadline = std::chrono::seconds(5);
// For a worker that was refused to read what was sent before, and why, and to hang up.
constexpr auto kRefusalDeadline = std::chrono::seconds(2);

// Messages on their way to one worker. Bounded: a reader that never reads is closed, not waited for.
struct Connection {
  explicit Connection(grpc::ServerContext* call) : context(call) {}
  Mutex mu;
  Condition wake;
  std::deque<ToWorker> queue TP_GUARDED_BY(mu);
  bool held TP_GUARDED_BY(mu) = false;  // more is coming that shall go with it (Hub::Hold)
  bool last TP_GUARDED_BY(mu) = false;  // nothing is sent behind what is queued: a refusal
  bool closed TP_GUARDED_BY(mu) = false;
  std::string why TP_GUARDED_BY(mu);
  grpc::ServerContext* context TP_GUARDED_BY(mu);  // null when the call has ended
  grpc::Alarm refused;  // ends the call; the writer cannot, while it waits in Write

  void CloseLocked(const std::string& reason) TP_REQUIRES(mu) {
    if (closed) return;
    closed = true;
    why = reason;
    wake.NotifyAll();
  }
};

struct Greeting {
  Mutex mu;
  Condition wake;
  bool came TP_GUARDED_BY(mu) = false;
};

}  // namespace

struct Hub::Impl final : v1::Control::Service {
  HubOptions options;
  JobTokens tokens;
  std::function<void(HubEvent)> sink;
  RowsProvider rows;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Listener> listener;
  std::atomic<int64_t> refused{0};
  Mutex mu;
  std::map<ConnectionId, std::shared_ptr<Connection>> connections TP_GUARDED_BY(mu);
  int64_t holds TP_GUARDED_BY(mu) = 0;
  std::set<std::shared_ptr<Connection>> have_waiting TP_GUARDED_BY(mu);  // messages, until the last hold ends
  ConnectionId next_connection TP_GUARDED_BY(mu) = 1;

  Impl(HubOptions o, JobTokens t) : options(std::move(o)), tokens(std::move(t)) {}

  void Release();

  Status Authorise(const grpc::ServerContext& context, CallerRole* role) {
    const Status status = CheckToken(context, tokens, role);
    if (status.ok()) {
      listener->Authenticated(context.peer());
    } else {
      refused.fetch_add(1);
    }
    return status;
  }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Frame, v1::Frame>* stream) override {
    CallerRole role{};
    if (const Status s = Authorise(*context, &role); !s.ok()) return ToGrpc(s);
    if (role == CallerRole::kOperator) {
      refused.fetch_add(1);
      return ToGrpc(PermissionDenied("Attach: the operator token may not attach a worker"));
    }
    // A stream that opens and stays silent must not hold a thread for ever.
    Greeting greeting;
    std::jthread guard([&](std::stop_token) {  // waits: kHelloDeadline at most
      const MutexLock lock(greeting.mu);
      if (!greeting.wake.WaitFor(greeting.mu, kHelloDeadline,
                                 [&]() TP_REQUIRES(greeting.mu) { return greeting.came; }))
        context->TryCancel();
    });
    v1::Frame wire;
    const bool read = stream->Read(&wire);
    {
      const MutexLock lock(greeting.mu);
      greeting.came = true;
    }
    greeting.wake.NotifyAll();
    guard.join();  // waits: it was told
    if (!read) return ToGrpc(DeadlineExceeded("Attach: no Hello came"));
    auto first = Unpack<FromWorker>(wire);
    if (!first.ok()) return ToGrpc(first.status().At("Attach"));
    auto* hello = first->size() == 1 ? std::get_if<up::Hello>(&first->front().body) : nullptr;
    if (hello == nullptr) return ToGrpc(InvalidArgument("Attach: the first message has to be Hello"));
    if (hello->run_id != options.run_id) {
      return ToGrpc(FailedPrecondition("this is the controller of run " + options.run_id +
                                       ", and the worker is to join run " + hello->run_id + " (--run-id)"));
    }
    const CallerRole wanted = hello->kind == scheduler::WorkerKind::kDevice   ? CallerRole::kDevice
                              : hello->kind == scheduler::WorkerKind::kReward ? CallerRole::kReward
                                                                              : CallerRole::kEnvironment;
    if (role != wanted) {
      refused.fetch_add(1);
      return ToGrpc(PermissionDenied(std::string("Attach: a token for ") + Name(role) + " may not attach a " +
                                     Name(wanted) + " worker"));
    }

    auto connection = std::make_shared<Connection>(context);
    ConnectionId id = 0;
    {
      const MutexLock lock(mu);
      id = next_connection++;
      connections[id] = connection;
    }
    // waits: joined below, after the stream was cancelled
    std::jthread writer([&, connection](std::stop_token) { Write(*connection, stream); });
    sink(HubOpened{id, std::move(*hello), context->peer()});
    std::string why = "the connection was closed";
    while (stream->Read(&wire)) {
      auto messages = Unpack<FromWorker>(wire);
      const auto allowed = [&]() -> Status {
        TP_RETURN_IF_ERROR(messages.status());
        for (const FromWorker& message : *messages) {
          const Status may = Allowed(role, message);
          refused.fetch_add(may.ok() ? 0 : 1);
          TP_RETURN_IF_ERROR(may);
        }
        return OkStatus();
      };
      if (const Status s = allowed(); !s.ok()) {
        why = s.message();
        break;
      }
      for (FromWorker& message : *messages) sink(HubMessage{id, std::move(message)});
      wire.Clear();
    }
    {
      const MutexLock lock(connection->mu);
      if (!connection->why.empty()) why = connection->why;
      connection->CloseLocked(why);
      connection->context = nullptr;
    }
    connection->refused.Cancel();
    context->TryCancel();  // lets a writer that waits in Write return
    writer.join();         // waits: closed and cancelled, so neither its wait nor its Write goes on
    {
      const MutexLock lock(mu);
      connections.erase(id);
    }
    sink(HubClosed{id, why});
    return grpc::Status::OK;
  }

  // A reward worker has verdicts and heartbeats to say, an environment worker what came of actions; neither
  // has anything to say about devices or weights.
  static Status Allowed(CallerRole role, const FromWorker& message) {
    const auto& body = message.body;
    if (std::holds_alternative<up::Hello>(body)) return InvalidArgument("a second Hello on one connection");
    if (std::holds_alternative<up::Heartbeat>(body) || std::holds_alternative<up::Offer>(body))
      return OkStatus();
    const bool is_grade = std::holds_alternative<up::Graded>(body),
               is_step = std::holds_alternative<up::EnvStepped>(body);
    if ((role == CallerRole::kReward) == is_grade && (role == CallerRole::kEnvironment) == is_step)
      return OkStatus();
    return PermissionDenied(std::string("a ") + Name(role) + " worker may not send this message");
  }

  static void Write(Connection& connection, grpc::ServerReaderWriter<v1::Frame, v1::Frame>* stream) {
    while (true) {
      std::deque<ToWorker> batch;
      {
        const MutexLock lock(connection.mu);
        // The end of the connection calls CloseLocked; the controller closes one that falls silent.
        while (!connection.wake.WaitFor(
            connection.mu, std::chrono::seconds(1), [&]() TP_REQUIRES(connection.mu) {
              return connection.closed || (!connection.held && !connection.queue.empty());
            })) {
        }
        if (connection.queue.empty()) return;
        batch.swap(connection.queue);
      }
      // No buffer_hint: a first message written with it waits for a second one that may never come.
      for (size_t at = 0; at < batch.size();) {
        v1::Frame wire;
        at = Pack(batch, at, kTogetherBytes, &wire);
        if (!stream->Write(wire)) {
          const MutexLock lock(connection.mu);
          connection.CloseLocked("the worker stopped reading");
          return;
        }
      }
    }
  }

  grpc::Status FetchRows(grpc::ServerContext* context, const v1::FetchRowsRequest* request,
                         grpc::ServerWriter<v1::Frame>* writer) override {
    CallerRole role{};
    if (const Status s = Authorise(*context, &role); !s.ok()) return ToGrpc(s);
    if (role != CallerRole::kDevice) {
      refused.fetch_add(1);
      return ToGrpc(
          PermissionDenied(std::string("FetchRows: a token for ") + Name(role) + " may not read batches"));
    }
    auto batch = rows(request->lease(), {request->step()}, {request->inc() - 1});
    if (!batch.ok()) return ToGrpc(batch.status());
    if (!WriteRows(**batch, static_cast<size_t>(options.max_frame_bytes) / 2,
                   [&](const v1::Frame& frame) { return writer->Write(frame); }))
      return ToGrpc(Unavailable("FetchRows: the worker went away"));
    return grpc::Status::OK;
  }
};

Hub::Hub() = default;
Hub::~Hub() {
  if (impl_ != nullptr) Stop();
}

bool IsLoopback(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1" || host == "[::1]" ||
         host.rfind("127.", 0) == 0;
}

namespace {

StatusOr<std::unique_ptr<Listener>> OpenDoor(const std::string& bind, int64_t port) {
  if (!IsLoopback(bind)) {
    return InvalidArgument(
        "cluster.bind is " + bind +
        ", which others can reach; only loopback addresses are allowed until mutual TLS exists");
  }
  auto listener = Listener::Open(bind, port);
  if (listener.ok()) return listener;
  return Unavailable("cluster.port: " + listener.status().message() +
                     "; choose another, or 0 for any free one");
}

}  // namespace

Status Hub::CanListen(const std::string& bind, int64_t port) { return OpenDoor(bind, port).status(); }

StatusOr<std::unique_ptr<Hub>> Hub::Start(const HubOptions& options, const JobTokens& tokens,
                                          std::function<void(HubEvent)> sink, RowsProvider rows) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, OpenDoor(options.bind, options.port));
  QuietGrpcLog();
  std::unique_ptr<Hub> hub(new Hub());
  hub->impl_ = std::make_unique<Impl>(options, tokens);
  hub->impl_->sink = std::move(sink);
  hub->impl_->rows = std::move(rows);
  hub->impl_->listener = std::move(listener);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_control_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_control_bytes));
  builder.RegisterService(hub->impl_.get());
  TP_ASSIGN_OR_RETURN(hub->impl_->server, hub->impl_->listener->Serve(builder));
  return hub;
}

std::string Hub::address() const { return impl_->listener->address(); }
int64_t Hub::refused_calls() const { return impl_->refused.load(); }

void Hub::Send(ConnectionId id, ToWorker message) {
  std::shared_ptr<Connection> connection;
  {
    const MutexLock lock(impl_->mu);
    const auto it = impl_->connections.find(id);
    if (it == impl_->connections.end()) return;  // it has just gone: HubClosed is on its way
    connection = it->second;
    if (impl_->holds > 0 && impl_->have_waiting.insert(connection).second) {
      const MutexLock inner(connection->mu);
      connection->held = true;
    }
  }
  const MutexLock lock(connection->mu);
  if (connection->closed || connection->last) return;
  if (static_cast<int64_t>(connection->queue.size()) >= impl_->options.max_queued_messages) {
    connection->CloseLocked("the worker does not read its commands");
    if (connection->context != nullptr) connection->context->TryCancel();
    return;
  }
  connection->queue.push_back(std::move(message));
  if (!connection->held) connection->wake.NotifyAll();
}

void Hub::Impl::Release() {
  const MutexLock lock(mu);
  if (--holds > 0) return;
  for (const auto& connection : have_waiting) {
    const MutexLock inner(connection->mu);
    connection->held = false;
    connection->wake.NotifyAll();
  }
  have_waiting.clear();
}

Hub::Holding::~Holding() { hub_->impl_->Release(); }
Hub::Holding Hub::Hold() {
  const MutexLock lock(impl_->mu);
  ++impl_->holds;
  return Holding(this);
}

void Hub::Refuse(ConnectionId id, down::Refuse why) {
  const MutexLock lock(impl_->mu);
  const auto it = impl_->connections.find(id);
  if (it == impl_->connections.end()) return;
  const std::shared_ptr<Connection> connection = it->second;
  const MutexLock inner(connection->mu);
  if (connection->last || connection->context == nullptr) return;
  connection->why = why.why;
  connection->queue.push_back(ToWorker{0, 0, std::move(why)});
  connection->last = true;
  connection->held = false;
  connection->wake.NotifyAll();
  connection->refused.Set(std::chrono::system_clock::now() + kRefusalDeadline, [connection](bool due) {
    if (!due) return;  // the call has ended
    const MutexLock lock(connection->mu);
    if (connection->context != nullptr) connection->context->TryCancel();
  });
}

void Hub::Close(ConnectionId id, const std::string& why) {
  const MutexLock lock(impl_->mu);
  const auto it = impl_->connections.find(id);
  if (it == impl_->connections.end()) return;
  const MutexLock inner(it->second->mu);
  it->second->CloseLocked(why);
  if (it->second->context != nullptr) it->second->context->TryCancel();
}

void Hub::Stop() {
  if (impl_->listener != nullptr) impl_->listener->Close();
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  impl_->server->Wait();  // waits: Shutdown cancels every call at its deadline
  impl_->server.reset();
}

}  // namespace tidepool::workers
