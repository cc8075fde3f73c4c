#include "workers/net/link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "proto/control.grpc.pb.h"
#include "workers/net/rpc_status.h"
#include "workers/net/wire.h"
#include "workers/net/wire_tokens.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
using Stream = grpc::ClientReaderWriter<v1::FromWorker, v1::ToWorker>;

std::string AddressIn(const std::string& control_file, const std::string& fallback) {
  std::ifstream in(control_file);
  if (!in) return fallback;
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("address") || !json["address"].is_string()) return fallback;
  return json["address"].get<std::string>();
}

}  // namespace

struct Link::Impl {
  LinkOptions options;
  std::function<void(std::vector<LinkEvent>)> sink;

  std::mutex mu;
  std::condition_variable wake;
  std::deque<FromWorker> outbox;   // not yet handed to the stream
  std::deque<FromWorker> unacked;  // kept for re-attachment when there is a grace
  int64_t next_seq = 1;
  Incarnation inc;
  double grace_s = 0;
  std::function<std::vector<up::Held>()> held;
  bool stop = false;
  bool connected = false;
  std::shared_ptr<grpc::Channel> channel;
  grpc::ClientContext* context = nullptr;
  std::atomic<int64_t> heard_ns{0};
  std::jthread pump;  // waits: its stream is cancelled before it is joined

  void Heard() { heard_ns.store(Clock::now().time_since_epoch().count()); }

  // One life of the stream: Hello is said, messages go both ways until it ends.
  struct Session {
    std::unique_ptr<v1::Control::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<Stream> stream;
  };

  StatusOr<Session> Open(const std::string& address, std::chrono::system_clock::time_point deadline) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(static_cast<int>(options.max_control_bytes));
    args.SetMaxSendMessageSize(static_cast<int>(options.max_control_bytes));
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                0);  // workers and controller speak to each other, never through a proxy
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    auto opened = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
    if (!opened->WaitForConnected(deadline)) {
      return Unavailable("no controller answers at " + address + "; is the run still there?");
    }
    Session session;
    session.stub = v1::Control::NewStub(opened);
    // waits: the stream lasts as long as the run; a device worker that hears nothing for a lease serves
    // nothing (SecondsSinceHeard)
    session.context = std::make_unique<grpc::ClientContext>();
    AddToken(session.context.get(), options.token);
    session.stream = session.stub->Attach(session.context.get());
    FromWorker first;
    up::Hello hello = options.hello;
    {
      const std::lock_guard lock(mu);
      hello.restored_inc = inc;
      channel = opened;
    }
    if (inc.valid() && held) hello.held = held();
    first.inc = inc;
    first.body = std::move(hello);
    v1::FromWorker wire;
    ToWire(first, &wire);
    if (!session.stream->Write(wire)) return FromGrpc(session.stream->Finish()).At("attach to " + address);
    return session;
  }

  // Reads until the stream ends; hands commands on. Returns why it ended.
  Status Pump(Session& session) {
    {
      const std::lock_guard lock(mu);
      if (stop) session.context->TryCancel();
      context = session.context.get();
      connected = true;
      outbox.insert(outbox.begin(), unacked.begin(), unacked.end());
      unacked.clear();
    }
    std::jthread writer(
        [&](std::stop_token) { Write(session); });  // waits: joined below, after the stream was cancelled
    v1::ToWorker wire;
    std::string refusal;
    while (session.stream->Read(&wire)) {
      Heard();
      auto messages = FromWireTogether(wire);
      wire.Clear();
      if (!messages.ok()) {
        refusal = messages.status().message();
        break;
      }
      std::vector<LinkEvent> events;
      for (ToWorker& message : *messages) {
        {
          const std::lock_guard lock(mu);
          if (std::holds_alternative<down::Welcome>(message.body)) inc = message.inc;
          while (!unacked.empty() && unacked.front().seq <= message.ack) unacked.pop_front();
        }
        if (const auto* refuse = std::get_if<down::Refuse>(&message.body)) {
          refusal = refuse->why;
          break;
        }
        if (!std::holds_alternative<down::LeaseRenewal>(message.body))
          events.emplace_back(std::move(message));
      }
      if (!events.empty()) sink(std::move(events));
      if (!refusal.empty()) break;
    }
    {
      const std::lock_guard lock(mu);
      connected = false;
      context = nullptr;
      wake.notify_all();
    }
    session.context->TryCancel();
    writer.join();  // waits: connected is false and the stream cancelled, so neither its wait nor its Write
                    // goes on
    const Status end = FromGrpc(session.stream->Finish());
    if (!refusal.empty()) return FailedPrecondition(refusal);
    return end.ok() ? Unavailable("the controller closed the connection") : end;
  }

  void Write(Session& session) {
    while (true) {
      std::deque<FromWorker> batch;
      {
        std::unique_lock lock(mu);
        // waits: until Pump ends, which clears `connected`
        wake.wait(lock, [&] { return !connected || !outbox.empty(); });
        if (!connected) return;
        batch.swap(outbox);
        if (grace_s > 0) unacked.insert(unacked.end(), batch.begin(), batch.end());
      }
      // No buffer_hint: a first message written with it waits for a second one that may never come.
      for (size_t at = 0; at < batch.size();) {
        v1::FromWorker wire;
        at = ToWireTogether(batch, at, &wire);
        if (!session.stream->Write(wire)) return;
      }
    }
  }

  void Run(Session session) {
    while (true) {
      Status end = Pump(session);
      double grace = 0;
      {
        const std::lock_guard lock(mu);
        grace = grace_s;
        if (stop) return;
      }
      const bool may_return = end.code() == StatusCode::kUnavailable ||
                              end.code() == StatusCode::kCancelled || end.code() == StatusCode::kUnknown;
      const auto until =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace));
      bool again = false;
      while (may_return && grace > 0 && Clock::now() < until) {
        {
          const std::lock_guard lock(mu);
          if (stop) return;
        }
        auto next = Open(AddressIn(options.control_file, options.address),
                         std::chrono::system_clock::now() + std::chrono::milliseconds(500));
        if (next.ok()) {
          session = std::move(*next);
          again = true;
          break;
        }
      }
      if (!again) {
        sink({LinkClosed{end.message()}});
        return;
      }
    }
  }
};

Link::Link() : impl_(std::make_unique<Impl>()) {}

StatusOr<std::unique_ptr<Link>> Link::Connect(const LinkOptions& options,
                                              std::function<void(std::vector<LinkEvent>)> sink) {
  QuietGrpcLog();
  std::unique_ptr<Link> link(new Link());
  Impl& impl = *link->impl_;
  impl.options = options;
  impl.sink = std::move(sink);
  impl.grace_s = options.reattach_grace_s;
  const auto deadline = std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(options.connect_timeout_s * 1000));
  auto session = impl.Open(AddressIn(options.control_file, options.address), deadline);
  if (!session.ok()) return session.status();
  impl.Heard();
  impl.pump =
      std::jthread([&impl, s = std::move(*session)](std::stop_token) mutable { impl.Run(std::move(s)); });
  return link;
}

Link::~Link() {
  {
    const std::lock_guard lock(impl_->mu);
    impl_->stop = true;
    if (impl_->context != nullptr) impl_->context->TryCancel();
    impl_->wake.notify_all();
  }
  if (impl_->pump.joinable())
    impl_->pump.join();  // waits: cancelled above; an attempt to come back takes half a second
}

void Link::Send(FromWorkerBody body) {
  const std::lock_guard lock(impl_->mu);
  FromWorker message;
  message.inc = impl_->inc;
  message.seq = impl_->next_seq++;
  message.body = std::move(body);
  impl_->outbox.push_back(std::move(message));
  impl_->wake.notify_all();
}

void Link::SetReattach(double grace_s, std::function<std::vector<up::Held>()> held) {
  const std::lock_guard lock(impl_->mu);
  impl_->grace_s = grace_s;
  impl_->held = std::move(held);
}

double Link::SecondsSinceHeard() const {
  const Clock::duration silent(Clock::now().time_since_epoch().count() - impl_->heard_ns.load());
  return std::chrono::duration<double>(silent).count();
}

StatusOr<std::vector<BatchRow>> Link::FetchRows(int64_t lease, StepNumber step) {
  std::shared_ptr<grpc::Channel> channel;
  Incarnation inc;
  {
    const std::lock_guard lock(impl_->mu);
    channel = impl_->channel;
    inc = impl_->inc;
  }
  auto stub = v1::Control::NewStub(channel);
  grpc::ClientContext context;
  AddToken(&context, impl_->options.token);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  v1::FetchRowsRequest request;
  request.set_lease(lease);
  request.set_step(step.value);
  request.set_inc(inc.value + 1);
  auto reader = stub->FetchRows(&context, request);
  std::vector<BatchRow> rows;
  v1::RowsFrame frame;
  while (reader->Read(&frame)) {
    for (const auto& wire : frame.rows()) {
      auto row = FromWire(wire);
      if (!row.ok()) {
        context.TryCancel();
        return row.status();
      }
      rows.push_back(std::move(*row));
    }
    frame.Clear();
  }
  TP_RETURN_IF_ERROR(FromGrpc(reader->Finish()).At("fetch rows of lease " + std::to_string(lease)));
  return rows;
}

}  // namespace tidepool::workers
