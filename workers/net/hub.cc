#include "workers/net/hub.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/loopback.h"
#include "core/base/thread_annotations.h"
#include "core/observe/log.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/door.h"
#include "workers/net/listener.h"
#include "workers/net/rows_call.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

// How a call of Attach is cut short, also after it has ended.
struct Cut {
  explicit Cut(grpc::CallbackServerContext* call) : context(call) {}
  grpc::Alarm hello, due;
  Mutex mu;
  grpc::CallbackServerContext* context TP_GUARDED_BY(mu);  // null when the call has ended

  void Now() {
    const MutexLock lock(mu);
    if (context != nullptr) context->TryCancel();
  }
};

// The alarm is a part of what it is given: a shared_ptr would never go.
void CutAfter(grpc::Alarm& alarm, const std::shared_ptr<Cut>& cut, Duration after) {
  alarm.Set(std::chrono::system_clock::now() + after, [weak = std::weak_ptr(cut)](bool due) {
    if (const auto at = weak.lock(); due && at != nullptr) at->Now();
  });
}

}  // namespace

struct Hub::Impl final : v1::Control::WithCallbackMethod_Attach<v1::Control::Service>, Door::Streams {
  class Stream;

  HubOptions options;
  JobTokens tokens;
  std::function<void(HubEvent)> sink;
  RowsProvider rows;
  MeetingProvider meetings;
  std::unique_ptr<Listener> listener;
  std::atomic<int64_t> refused{0}, row_bytes{0}, received{0}, sent{0};
  Mutex mu;
  Door door TP_GUARDED_BY(mu);
  Renews renews TP_GUARDED_BY(mu);                            // null: it gives no certificates
  std::map<ConnectionId, Stream*> streams TP_GUARDED_BY(mu);  // of `door`
  std::map<int64_t, Incarnation> welcomed TP_GUARDED_BY(mu);  // by place, the last one that was told
  // Streams with something to write. A thousand connections have no threads of their own: these encode what
  // goes out, gRPC's take in what comes.
  static constexpr size_t kWriters = 2;
  Condition some_ready;
  std::deque<ConnectionId> ready TP_GUARDED_BY(mu);
  std::vector<std::jthread> writers;  // waits: their own wait ends with the stop token

  Impl(HubOptions o, JobTokens t)
      : options(std::move(o)), tokens(std::move(t)), door(options.max_queued_messages, this) {}

  // Of Door, which is called under `mu`.
  void Wake(ConnectionId id) override TP_REQUIRES(mu);
  void End(ConnectionId id, Duration after) override TP_REQUIRES(mu);

  // A call that is refused for who makes it is counted.
  Status Counted(Status status) {
    if (status.code() == StatusCode::kPermissionDenied || status.code() == StatusCode::kUnauthenticated)
      refused.fetch_add(1);
    return status;
  }

  // Whoever comes again and again fills no disk with that.
  void Tell(const char* event, const std::string& text) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    if (told_.exchange(second) != second) observe::Log(LogLevel::kWarn, event, {{"text", text}});
  }
  std::atomic<int64_t> told_ = 0;  // the second of the last one

  // Told here, too: nobody else sees it where its worker was started by others.
  Status OtherBuild(const std::string& build, const std::string& peer) {
    const std::string text =
        "this worker is " +
        (build.empty() ? "of a build that does not say which, at " + PeerName(peer) : build) +
        ", the controller is " + options.build +
        ", and they do not understand each other: use one build for both (the same package on all hosts)";
    Tell("other_build", text);
    return FailedPrecondition(text);
  }

  Status Authorise(const grpc::ServerContextBase& context, CallerRole* role) {
    TP_RETURN_IF_ERROR(Counted(CheckToken(context, tokens, role)));
    TP_RETURN_IF_ERROR(Counted(CheckCertificate(context, Name(*role))));
    if (*role == CallerRole::kOperator)
      return Counted(PermissionDenied("an operator reads pages, and takes no part in the run"));
    listener->Authenticated(context.peer());
    return OkStatus();
  }

  bool IsAt(int64_t place, Incarnation reader) {
    const MutexLock lock(mu);
    const auto it = welcomed.find(place);
    return it != welcomed.end() && it->second == reader;
  }

  grpc::ServerBidiReactor<v1::Frame, v1::Frame>* Attach(grpc::CallbackServerContext* context) override;
  void Write(const std::stop_token& stop);

  // A device, and where its certificate is for a place, this incarnation there.
  Status AuthoriseDevice(const grpc::ServerContextBase& context, Incarnation inc, const std::string& method) {
    CallerRole role{};
    TP_RETURN_IF_ERROR(Authorise(context, &role));
    if (role != CallerRole::kDevice)
      return Counted(PermissionDenied(method + ": is for devices, and the token for " + Name(role)));
    const auto place = CertifiedPlaceOf(context);
    return place ? CheckAt(*place, inc, method) : OkStatus();
  }
  Status CheckAt(int64_t place, Incarnation inc, const std::string& method) {
    if (IsAt(place, inc)) return OkStatus();
    return Counted(PermissionDenied(method + ": the certificate is for place " + std::to_string(place) +
                                    ", which incarnation " + std::to_string(inc.value) + " does not have"));
  }

  grpc::Status FetchRows(grpc::ServerContext* context, const v1::FetchRowsRequest* request,
                         grpc::ServerWriter<v1::Frame>* writer) override {
    const Incarnation reader{request->inc() - 1};
    if (const Status s = AuthoriseDevice(*context, reader, "FetchRows"); !s.ok()) return ToGrpc(s);
    auto batch = rows(request->lease(), {request->step()}, reader, request->rank());
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

  // The other service of the same door.
  struct Payloads final : v1::Rows::Service {
    explicit Payloads(Impl& of) : hub(of) {}
    grpc::Status Read(grpc::ServerContext* context, const v1::ReadRowsRequest* request,
                      grpc::ServerWriter<v1::RowBytes>* writer) override {
      const v1::FetchRowsRequest& of = request->of();
      const Incarnation reader{of.inc() - 1};
      if (const Status s = hub.AuthoriseDevice(*context, reader, "Rows.Read"); !s.ok()) return ToGrpc(s);
      if (!hub.options.payloads) return ToGrpc(NotFound("Rows.Read: there are no payloads here"));
      const auto batch = hub.rows(of.lease(), {of.step()}, reader, of.rank());
      if (!batch.ok()) return ToGrpc(batch.status());
      std::set<std::tuple<int64_t, int64_t, int64_t>> its;
      for (const BatchRow& row : **batch)
        if (row.rank == of.rank())
          its.emplace(row.stored.payload_file, row.stored.payload_offset, row.stored.payload_bytes);
      for (const v1::PayloadPlace& place : request->places())
        if (!its.contains({place.file(), place.offset(), place.bytes()}))
          return ToGrpc(hub.Counted(PermissionDenied("Rows.Read: that is no row of this rank")));
      const auto write = [&](const v1::RowBytes& frame) {
        hub.row_bytes += static_cast<int64_t>(frame.ByteSizeLong());
        hub.sent += static_cast<int64_t>(frame.ByteSizeLong());
        return writer->Write(frame);
      };
      return ToGrpc(ServeRows(hub.options.payloads, *request,
                              static_cast<size_t>(hub.options.max_frame_bytes) / 2, write)
                        .At("Rows.Read"));
    }
    Impl& hub;
  };
  Payloads payload_files{*this};

  grpc::Status Renew(grpc::ServerContext* context, const v1::RenewRequest* request,
                     v1::JoinReply* reply) override {
    CallerRole role{};
    if (const Status s = Authorise(*context, &role); !s.ok()) return ToGrpc(s);
    const auto place = CertifiedPlaceOf(*context);
    if (!place)
      return ToGrpc(Counted(PermissionDenied(
          "Renew: the certificate is no newcomer's; those of RUN/security are exchanged there")));
    if (const Status s = CheckAt(*place, Incarnation{request->inc() - 1}, "Renew"); !s.ok()) return ToGrpc(s);
    Renews by;
    {
      const MutexLock lock(mu);
      by = renews;
    }
    if (!by)
      return ToGrpc(FailedPrecondition(
          "Renew: the controller gives no certificates to newcomers; go on with --resume, with "
          "security.newcomers=true"));
    const auto certified = by(request->signing_request(), role, *place);
    if (!certified.ok()) return ToGrpc(certified.status().At("Renew"));
    reply->set_authority(certified->authority);
    reply->set_certificate(certified->certificate);
    reply->set_believed_in_s(certified->believed_in.count());
    return grpc::Status::OK;
  }

  grpc::Status Meet(grpc::ServerContext* context, const v1::MeetRequest* request,
                    v1::MeetReply* reply) override {
    const Incarnation asker{request->inc() - 1};
    if (const Status s = AuthoriseDevice(*context, asker, "Meet"); !s.ok()) return ToGrpc(s);
    if (!meetings) return ToGrpc(NotFound("Meet: nobody trains together here"));
    const auto table = meetings(request->meeting(), asker);
    if (!table.ok()) return ToGrpc(table.status());
    const std::vector<std::string> keys(request->keys().begin(), request->keys().end());
    if (request->what_case() == v1::MeetRequest::kGetMs) {
      // A thread waits here for each rank that waits.
      const std::chrono::milliseconds patience(std::clamp<int64_t>(request->get_ms(), 0, 1000));
      const auto values = (*table)->Get(keys, patience);
      if (values.status().code() == StatusCode::kDeadlineExceeded) return grpc::Status::OK;
      if (!values.ok()) return ToGrpc(values.status());
      reply->mutable_values()->Assign(values->begin(), values->end());
      return grpc::Status::OK;
    }
    if (keys.size() != 1) return ToGrpc(InvalidArgument("Meet: one key is set at a time"));
    if (request->what_case() == v1::MeetRequest::kSet) return ToGrpc((*table)->Set(keys[0], request->set()));
    const auto sum = (*table)->Add(keys[0], request->add());
    if (sum.ok()) reply->set_sum(*sum);
    return ToGrpc(sum.status());
  }
};

// One call of Attach, as gRPC's threads drive it: one read at a time, one write at a time, and the end when
// neither is under way.
class Hub::Impl::Stream final : public grpc::ServerBidiReactor<v1::Frame, v1::Frame> {
 public:
  Stream(Impl& hub, grpc::CallbackServerContext* context)
      : hub_(hub), peer_(context->peer()), build_(BuildOf(*context)), cut_(std::make_shared<Cut>(context)) {
    if (const Status s = hub_.Authorise(*context, &role_); !s.ok()) {
      Finish(ToGrpc(s));
    } else {
      certified_ = CertifiedPlaceOf(*context);
      CutAfter(cut_->hello, cut_, Door::kHelloDeadline);
      StartRead(&in_);
    }
  }

  // Under Impl::mu: whether it is to be put into `ready`.
  bool MayWait() { return !writing_ && !std::exchange(waiting_, true); }
  // Under Impl::mu: it has left `ready`. True: what is taken now is to be written; its end is OnWriteDone.
  bool MayWrite() {
    waiting_ = false;
    return !writing_ && !over_;
  }
  void Writes(bool some) { writing_ = some; }
  void End(Duration after) {
    if (after > Duration{0}) return CutAfter(cut_->due, cut_, after);
    cut_->Now();
  }

  // By the thread that took it.
  void Write(const std::deque<ToWorker>& batch) {
    WriteFrames(batch, kFrameBytes, [this](const v1::Frame& frame) {
      hub_.sent += static_cast<int64_t>(frame.ByteSizeLong());
      out_.push_back(frame);
      return true;
    });
    // No buffer_hint: a first message written with it waits for a second one that may never come.
    StartWrite(&out_.front());
  }

  void OnReadDone(bool ok) override {
    if (id_ == 0) return Greet(ok);
    if (!ok) return Close();
    hub_.received += static_cast<int64_t>(in_.ByteSizeLong());
    Hear();
    in_.Clear();
    StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    if (ok) out_.pop_front();
    if (ok && !out_.empty()) return StartWrite(&out_.front());
    bool over = false;
    {
      const MutexLock lock(hub_.mu);
      writing_ = false;
      over = over_;
      if (!over && !ok) hub_.door.Close(id_, "the worker stopped reading");
      if (!over && ok && hub_.door.HasUnsent(id_)) hub_.Wake(id_);
    }
    if (over) Finish(grpc::Status::OK);
  }

  void OnDone() override {
    {
      const MutexLock lock(cut_->mu);
      cut_->context = nullptr;
    }
    const std::shared_ptr<Stream> last = std::move(self_);
  }
  // gRPC lets go of it with OnDone.
  static Stream* Made(Impl& hub, grpc::CallbackServerContext* context) {
    const auto stream = std::make_shared<Stream>(hub, context);
    return (stream->self_ = stream).get();
  }

 private:
  void Greet(bool ok) {
    cut_->hello.Cancel();
    if (!ok) return Finish(ToGrpc(DeadlineExceeded("attach: no Hello came")));
    if (in_.schema() != WireSchema()) return Finish(ToGrpc(hub_.OtherBuild(build_, peer_).At("attach")));
    auto hello = Door::Greeting(hub_.options.run_id, role_, in_);
    if (hello.ok() && certified_ && hello->place != *certified_)
      hello = PermissionDenied("the certificate is for place " + std::to_string(*certified_) +
                               ", and the worker is to take place " + std::to_string(hello->place) +
                               " (--place)");
    if (!hello.ok()) return Finish(ToGrpc(hub_.Counted(hello.status().At("attach"))));
    {
      const MutexLock lock(hub_.mu);
      id_ = hub_.door.Open();
      hub_.streams[id_] = this;
    }
    hub_.sink(HubOpened{id_, *std::move(hello), peer_});
    in_.Clear();
    StartRead(&in_);
  }

  void Hear() {
    if (refused_) return;  // until it hangs up, or its time is over
    auto messages = reader_.Take<FromWorker>(in_);
    const Status heard = Door::Heard(role_, messages);
    if (heard.ok()) {
      if (messages->empty()) hub_.sink(HubPart{id_});
      for (FromWorker& message : *messages) hub_.sink(HubMessage{id_, std::move(message)});
      return;
    }
    refused_ = true;
    hub_.Tell("worker_refused", std::string("the ") + Name(role_) + " worker at " + peer_ +
                                    " is thrown out for what it says: " + heard.message());
    const MutexLock lock(hub_.mu);
    hub_.door.Refuse(id_, {hub_.Counted(heard).message()});
  }

  void Close() {
    std::string why;
    bool writing = false;
    {
      const MutexLock lock(hub_.mu);
      why = hub_.door.Closed(id_, "the connection was closed");
      hub_.streams.erase(id_);
      over_ = true;
      writing = writing_;
    }
    cut_->due.Cancel();
    hub_.sink(HubClosed{id_, why});
    cut_->Now();                             // ends a write that nobody reads
    if (!writing) Finish(grpc::Status::OK);  // else OnWriteDone does
  }

  std::shared_ptr<Stream> self_;  // until OnDone
  Impl& hub_;
  const std::string peer_, build_;
  const std::shared_ptr<Cut> cut_;
  CallerRole role_{};
  std::optional<int64_t> certified_;  // the place that the certificate is for
  ConnectionId id_ = 0;               // 0: no Hello has come
  // Of the read that is under way.
  v1::Frame in_;
  FrameReader reader_;
  bool refused_ = false;
  std::deque<v1::Frame> out_;  // of the write that is under way
  // Under Impl::mu. waiting_: it is in `ready`; writing_: from Take to the last OnWriteDone.
  bool waiting_ = false, writing_ = false, over_ = false;
};

grpc::ServerBidiReactor<v1::Frame, v1::Frame>* Hub::Impl::Attach(grpc::CallbackServerContext* context) {
  return Stream::Made(*this, context);
}

void Hub::Impl::Wake(ConnectionId id) {
  if (!streams.at(id)->MayWait()) return;
  ready.push_back(id);
  some_ready.NotifyAll();
}
void Hub::Impl::End(ConnectionId id, Duration after) { streams.at(id)->End(after); }

void Hub::Impl::Write(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Stream* stream = nullptr;
    std::deque<ToWorker> batch;
    {
      const MutexLock lock(mu);
      if (ready.empty()) {
        some_ready.WaitFor(mu, std::chrono::milliseconds(200));
        continue;
      }
      const auto it = streams.find(ready.front());
      ready.pop_front();
      if (it == streams.end()) continue;  // it is over
      stream = it->second;
      if (!stream->MayWrite()) continue;
      batch = door.TakeUnsent(it->first);
      stream->Writes(!batch.empty());
    }
    if (!batch.empty()) stream->Write(batch);  // it cannot end before its write has
  }
}

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
                                          std::function<void(HubEvent)> sink, RowsProvider rows,
                                          MeetingProvider meetings) {
  if (!IsLoopback(options.bind) && !options.identity) {
    return InvalidArgument("cluster.bind is " + options.bind +
                           ", which others can reach, and there are no certificates");
  }
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, OpenDoor(options.bind, options.port));
  std::unique_ptr<Hub> hub(new Hub());
  hub->impl_ = std::make_unique<Impl>(options, tokens);
  hub->impl_->sink = std::move(sink);
  hub->impl_->rows = std::move(rows);
  hub->impl_->meetings = std::move(meetings);
  hub->impl_->listener = std::move(listener);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_control_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_control_bytes));
  // It would ask every connection, several times a second, how much may be on its way: between hosts that is
  // the speed of a long line, on one host nothing.
  if (IsLoopback(options.bind)) builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.RegisterService(hub->impl_.get());
  builder.RegisterService(&hub->impl_->payload_files);
  TP_RETURN_IF_ERROR(hub->impl_->listener->Serve(builder, ServerSide(hub->impl_->options.identity)));
  for (size_t i = 0; i < Impl::kWriters; ++i)
    hub->impl_->writers.emplace_back(
        [impl = hub->impl_.get()](const std::stop_token& stop) { impl->Write(stop); });
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
  if (const auto* welcome = std::get_if<down::Welcome>(&message.body))
    impl_->welcomed[welcome->place] = welcome->inc;
  impl_->door.Send(id, std::move(message));
}

void Hub::RenewBy(Renews renews) {
  const MutexLock lock(impl_->mu);
  impl_->renews = std::move(renews);
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

void Hub::Stop() {
  impl_->listener->Stop();
  for (std::jthread& writer : impl_->writers) writer.request_stop();
  impl_->some_ready.NotifyAll();
}

}  // namespace tidepool::workers
