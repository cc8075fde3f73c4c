#include "workers/net/hub.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "core/base/loopback.h"
#include "core/base/thread_annotations.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/door.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

// One call of Attach.
struct AttachCall {
  explicit AttachCall(grpc::ServerContext* call) : context(call) {}
  Condition wake;  // with Hub::Impl::mu: there is something to write, or it is over
  bool over = false;
  grpc::Alarm due;  // ends the call; its writer cannot, while it waits in Write
  Mutex mu;
  grpc::ServerContext* context TP_GUARDED_BY(mu);  // null when the call has ended

  void Cancel() {
    const MutexLock lock(mu);
    if (context != nullptr) context->TryCancel();
  }
};

struct Greeting {
  Mutex mu;
  Condition wake;
  bool came TP_GUARDED_BY(mu) = false;
};

}  // namespace

struct Hub::Impl final : v1::Control::Service, Door::Streams {
  HubOptions options;
  JobTokens tokens;
  std::function<void(HubEvent)> sink;
  RowsProvider rows;
  std::unique_ptr<Listener> listener;
  std::atomic<int64_t> refused{0}, row_bytes{0}, received{0}, sent{0};
  Mutex mu;
  Door door TP_GUARDED_BY(mu);
  std::map<ConnectionId, std::shared_ptr<AttachCall>> streams TP_GUARDED_BY(mu);

  Impl(HubOptions o, JobTokens t)
      : options(std::move(o)), tokens(std::move(t)), door(options.max_queued_messages, this) {}

  // Of Door, which is called under `mu`.
  void Wake(ConnectionId id) override TP_REQUIRES(mu) { streams.at(id)->wake.NotifyAll(); }
  void End(ConnectionId id, Duration after) override TP_REQUIRES(mu) {
    const std::shared_ptr<AttachCall>& stream = streams.at(id);
    if (after <= Duration{0}) return stream->Cancel();
    // The alarm is a part of the stream, and keeps what it is given: a shared_ptr would never go.
    stream->due.Set(std::chrono::system_clock::now() + after, [weak = std::weak_ptr(stream)](bool due) {
      if (const auto ended = weak.lock(); due && ended != nullptr) ended->Cancel();
    });
  }

  // A call that is refused for who makes it is counted.
  Status Counted(Status status) {
    if (status.code() == StatusCode::kPermissionDenied || status.code() == StatusCode::kUnauthenticated)
      refused.fetch_add(1);
    return status;
  }

  Status Authorise(const grpc::ServerContext& context, CallerRole* role) {
    TP_RETURN_IF_ERROR(Counted(CheckToken(context, tokens, role)));
    TP_RETURN_IF_ERROR(Counted(CheckCertificate(context, Name(*role))));
    listener->Authenticated(context.peer());
    return OkStatus();
  }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Frame, v1::Frame>* call) override {
    CallerRole role{};
    if (const Status s = Authorise(*context, &role); !s.ok()) return ToGrpc(s);
    Greeting greeting;
    std::jthread guard([&](std::stop_token) {  // waits: kHelloDeadline at most
      const MutexLock lock(greeting.mu);
      if (!greeting.wake.WaitFor(greeting.mu, Door::kHelloDeadline,
                                 [&]() TP_REQUIRES(greeting.mu) { return greeting.came; }))
        context->TryCancel();
    });
    v1::Frame wire;
    const bool read = call->Read(&wire);
    {
      const MutexLock lock(greeting.mu);
      greeting.came = true;
    }
    greeting.wake.NotifyAll();
    guard.join();  // waits: it was told
    if (!read) return ToGrpc(DeadlineExceeded("attach: no Hello came"));

    auto hello = Door::Greeting(options.run_id, role, wire);
    if (!hello.ok()) return ToGrpc(Counted(hello.status().At("attach")));
    auto stream = std::make_shared<AttachCall>(context);
    ConnectionId id = 0;
    {
      const MutexLock lock(mu);
      id = door.Open();
      streams[id] = stream;
    }
    // waits: joined below, after the stream was cancelled
    std::jthread writer([&](std::stop_token) { Write(id, *stream, call); });
    sink(HubOpened{id, *std::move(hello), context->peer()});
    std::string why;
    bool refused_here = false;
    FrameReader reader;
    for (wire.Clear(); call->Read(&wire); wire.Clear()) {
      received += static_cast<int64_t>(wire.ByteSizeLong());
      if (refused_here) continue;  // until it hangs up, or its time is over
      auto messages = reader.Take<FromWorker>(wire);
      const Status heard = Door::Heard(role, messages);
      if (heard.ok()) {
        if (messages->empty()) sink(HubPart{id});
        for (FromWorker& message : *messages) sink(HubMessage{id, std::move(message)});
        continue;
      }
      refused_here = true;
      const MutexLock lock(mu);
      door.Refuse(id, {Counted(heard).message()});
    }
    {
      const MutexLock lock(mu);
      why = door.Closed(id, "the connection was closed");
      streams.erase(id);
      stream->over = true;
      stream->wake.NotifyAll();
    }
    stream->due.Cancel();
    stream->Cancel();  // lets a writer that waits in Write return
    writer.join();     // waits: over and cancelled, so neither its wait nor its Write goes on
    {
      const MutexLock lock(stream->mu);
      stream->context = nullptr;
    }
    sink(HubClosed{id, why});
    return grpc::Status::OK;
  }

  void Write(ConnectionId id, AttachCall& stream, grpc::ServerReaderWriter<v1::Frame, v1::Frame>* call) {
    while (true) {
      std::deque<ToWorker> batch;
      {
        const MutexLock lock(mu);
        // The end of the connection sets `over`; the controller closes one that falls silent.
        while (!stream.wake.WaitFor(mu, std::chrono::seconds(1),
                                    [&]() TP_REQUIRES(mu) { return stream.over || door.HasUnsent(id); })) {
        }
        if (stream.over) return;
        batch = door.TakeUnsent(id);
      }
      // No buffer_hint: a first message written with it waits for a second one that may never come.
      if (!WriteFrames(batch, kFrameBytes, [&](const v1::Frame& frame) {
            sent += static_cast<int64_t>(frame.ByteSizeLong());
            return call->Write(frame);
          })) {
        const MutexLock lock(mu);
        return door.Close(id, "the worker stopped reading");
      }
    }
  }

  grpc::Status FetchRows(grpc::ServerContext* context, const v1::FetchRowsRequest* request,
                         grpc::ServerWriter<v1::Frame>* writer) override {
    CallerRole role{};
    if (const Status s = Authorise(*context, &role); !s.ok()) return ToGrpc(s);
    if (role != CallerRole::kDevice) {
      return ToGrpc(Counted(
          PermissionDenied(std::string("FetchRows: a token for ") + Name(role) + " may not read batches")));
    }
    auto batch = rows(request->lease(), {request->step()}, {request->inc() - 1}, request->rank());
    if (!batch.ok()) return ToGrpc(batch.status());
    const auto write = [&](const v1::Frame& frame) {
      row_bytes += static_cast<int64_t>(frame.ByteSizeLong());
      sent += static_cast<int64_t>(frame.ByteSizeLong());
      return writer->Write(frame);
    };
    if (!WriteFrames(**batch, static_cast<size_t>(options.max_frame_bytes) / 2, write))
      return ToGrpc(Unavailable("FetchRows: the worker went away"));
    return grpc::Status::OK;
  }
};

Hub::Hub() = default;
Hub::~Hub() {
  if (impl_ != nullptr) Stop();
}

namespace {

StatusOr<std::unique_ptr<Listener>> OpenDoor(const std::string& bind, int64_t port) {
  auto listener = Listener::Open(bind, port);
  if (listener.ok()) return listener;
  return Unavailable(
      "cluster.bind, cluster.port: " + listener.status().message() +
      "; the address must be one of this host's (`ip address`); choose another port, or 0 for any free one");
}

}  // namespace

Status Hub::CanListen(const std::string& bind, int64_t port) { return OpenDoor(bind, port).status(); }

StatusOr<std::unique_ptr<Hub>> Hub::Start(const HubOptions& options, const JobTokens& tokens,
                                          std::function<void(HubEvent)> sink, RowsProvider rows) {
  if (!IsLoopback(options.bind) && !options.identity) {
    return InvalidArgument("cluster.bind is " + options.bind +
                           ", which others can reach, and there are no certificates");
  }
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
  TP_RETURN_IF_ERROR(hub->impl_->listener->Serve(builder, ServerSide(hub->impl_->options.identity)));
  return hub;
}

std::string Hub::address() const {
  const std::string& bound = impl_->listener->address();
  if (impl_->options.advertise.empty()) return bound;
  return JoinHostPort(impl_->options.advertise, std::stoll(bound.substr(bound.rfind(':') + 1)));
}
int64_t Hub::served_row_bytes() const { return impl_->row_bytes.load(); }
int64_t Hub::refused_calls() const { return impl_->refused.load(); }
int64_t Hub::received_bytes() const { return impl_->received.load(); }
int64_t Hub::sent_bytes() const { return impl_->sent.load(); }

void Hub::Send(ConnectionId id, ToWorker message) {
  const MutexLock lock(impl_->mu);
  impl_->door.Send(id, std::move(message));
}

void Hub::Refuse(ConnectionId id, down::Refuse why) {
  const MutexLock lock(impl_->mu);
  impl_->door.Refuse(id, std::move(why));
}

void Hub::Close(ConnectionId id, const std::string& why) {
  const MutexLock lock(impl_->mu);
  impl_->door.Close(id, why);
}

Hub::Holding Hub::Hold() {
  const MutexLock lock(impl_->mu);
  impl_->door.Hold();
  return Holding(this);
}

Hub::Holding::~Holding() {
  const MutexLock lock(hub_->impl_->mu);
  hub_->impl_->door.Release();
}

void Hub::Stop() { impl_->listener->Stop(); }

}  // namespace tidepool::workers
