#include "workers/net/link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "core/base/loopback.h"
#include "core/base/rng.h"
#include "core/base/thread_annotations.h"
#include "core/base/time.h"
#include "core/observe/log.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/exit_code.h"
#include "workers/net/newcomers.h"
#include "workers/net/rows_call.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/why_not_believed.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

// The most that security.max_control_bytes may be; its value binds the controller, which refuses what is
// larger.
constexpr int kMostFrameBytes = 64 << 20;
constexpr auto kQuestionWithin = std::chrono::seconds(5);  // of one question, which may wait for a second
// So long a controller of another run is dialled, in case it ends and leaves its port to ours. Most likely
// the folder is the wrong one, which has to be said soon.
constexpr auto kStrangerFor = std::chrono::seconds(3);

std::string AddressIn(const std::string& control_file, const std::string& fallback) {
  std::ifstream in(control_file);
  if (!in) return fallback;
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("address") || !json["address"].is_string()) return fallback;
  return json["address"].get<std::string>();
}

}  // namespace

struct Link::Impl {
  class Stream;

  LinkOptions options;
  std::function<void(std::vector<LinkEvent>)> sink;

  Mutex mu;
  Condition wake;
  WorkerSession session TP_GUARDED_BY(mu);
  Rng rng TP_GUARDED_BY(mu);  // of the pauses between two dials
  bool stop TP_GUARDED_BY(mu) = false;
  std::shared_ptr<grpc::Channel> channel TP_GUARDED_BY(mu);
  Stream* stream TP_GUARDED_BY(mu) = nullptr;                  // null: there is none
  std::set<grpc::ClientContext*> questions TP_GUARDED_BY(mu);  // that wait for their answers
  std::jthread pump;                         // waits: its stream is cancelled before it is joined
  std::unique_ptr<NewcomerRenewal> renewal;  // null: the certificates are no newcomer's; else of `renews`
  Condition renewal_pause;                   // that nobody wakes but the end
  std::jthread renews;                       // waits: its question is cancelled before it is joined

  Impl(LinkOptions o, uint64_t process)
      : options(std::move(o)), session(process, FromSeconds(options.connect_timeout_s)), rng(process) {}

  // Of who dials: why the last dial met somebody else; where it met another run, and since when.
  std::string not_believed, stranger_at;
  Clock::time_point stranger_since;

  static TimePoint Now() { return {Clock::now().time_since_epoch()}; }

  // A call beside the stream. It ends with the connection: a controller that is frozen, or has a successor,
  // would else hold the device thread until the deadline of the call, and the worker could not go on with
  // the successor.
  class Question {
   public:
    Question(Impl& link, std::chrono::system_clock::duration within) : link_(link) {
      AddToken(&context, link.options.credentials.token);
      context.set_deadline(std::chrono::system_clock::now() + within);
      const MutexLock lock(link.mu);
      link.questions.insert(&context);
    }
    ~Question() {
      const MutexLock lock(link_.mu);
      link_.questions.erase(&context);
    }
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    // waits: the deadline is set in the constructor
    grpc::ClientContext context;

   private:
    Impl& link_;
  };
  void EndQuestions() TP_REQUIRES(mu) {
    for (grpc::ClientContext* question : questions) question->TryCancel();
  }

  StatusOr<CertificateRenewal::Certified> AskToRenew(const std::string& signing_request) {
    std::shared_ptr<grpc::Channel> at;
    v1::RenewRequest request;
    request.set_signing_request(signing_request);
    {
      const MutexLock lock(mu);
      if (stop || stream == nullptr) return Unavailable("no controller is there");
      at = channel;
      request.set_inc(session.inc().value + 1);
    }
    Question question(*this, kQuestionWithin);
    v1::JoinReply reply;
    TP_RETURN_IF_ERROR(FromGrpc(v1::Control::NewStub(at)->Renew(&question.context, request, &reply)));
    return CertificateRenewal::Certified{
        reply.authority(), reply.certificate(),
        std::chrono::seconds(std::clamp<int64_t>(reply.believed_in_s(), 0, 60))};
  }

  void Renew(const std::stop_token& over) {
    std::string trouble;
    while (!over.stop_requested()) {
      const auto done = renewal->Advance(std::chrono::system_clock::now());
      if (!done.ok()) {
        if (std::exchange(trouble, done.status().message()) != done.status().message())
          observe::Log(LogLevel::kWarn, "certificates_not_renewed", {{"text", trouble}});
      } else if (!done->empty()) {
        trouble.clear();
        observe::Log(LogLevel::kInfo, "certificates_renewed", {{"text", *done}});
      }
      const MutexLock lock(mu);
      renewal_pause.WaitFor(mu, over, renewal->Pause());
    }
  }

  // What is asked of the rows of a lease, and where.
  std::pair<std::shared_ptr<grpc::Channel>, v1::FetchRowsRequest> RowsOf(int64_t lease, StepNumber step,
                                                                         int64_t rank);

  // Writes what the session has to say, unless that is under way; any thread.
  void Say();

  StatusOr<std::unique_ptr<Stream>> Open(const std::string& address) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(kMostFrameBytes);
    args.SetMaxSendMessageSize(kMostFrameBytes);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                0);  // workers and controller speak to each other, never through a proxy
    // Else gRPC would give this channel the connection of the last one, which may be dead without knowing it.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (IsLoopback(HostOf(address))) args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as in Hub
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    const auto& identity = options.credentials.identity;
    if (!identity && !IsLoopback(HostOf(address)))
      return FailedPrecondition(
          address +
          " is on another host, and no certificates lie beside the token, so calls would not be "
          "encrypted; take the whole folder RUN/security");
    const auto credentials = ClientSide(identity, kControllerRole, &args);
    auto opened = grpc::CreateCustomChannel(address, credentials, args);
    if (!Connected(*opened, address)) {
      const NotBelieved found =
          identity ? WhyNotBelieved(address, Newest(*identity), std::chrono::milliseconds(500))
                   : NotBelieved();
      const bool stranger = IsStranger(address, found.another_run);
      not_believed.clear();
      if (!found.why.empty()) {
        not_believed = "the controller at " + address + " and this worker do not come together: " + found.why;
        if (stranger) return FailedPrecondition(not_believed);
        return Unavailable(not_believed);  // another one may come to this port
      }
      return Unavailable(
          "no controller answers at " + address +
          (identity ? "; does the network lead there, and is the run still there? It has to answer with a "
                      "certificate of this job, too: those beside the token have to be of RUN/security"
                    : "; is the run still there?"));
    }
    return Begun(std::move(opened));
  }
  std::unique_ptr<Stream> Begun(std::shared_ptr<grpc::Channel> opened);

  // For so long that it is final. A worker that was attached has the patience that its controller gave it:
  // that one may come back at another address.
  bool IsStranger(const std::string& address, bool another_run) {
    const auto now = Clock::now();
    if (std::exchange(stranger_at, another_run ? address : "") != address) stranger_since = now;
    const MutexLock lock(mu);
    return another_run && session.ctl_epoch() == 0 && now - stranger_since >= kStrangerFor;
  }

  // In turns, so that a controller that comes back elsewhere is found soon. A connection that is on its way
  // has ten seconds, within the patience. It takes four round trips of TCP, TLS and HTTP/2, and packets that
  // are lost are sent again after 1, 2 and 4 s. A worker that dialled anew meanwhile would pay for all of
  // them again.
  bool Connected(grpc::Channel& opened, const std::string& address) {
    constexpr auto kTurn = std::chrono::milliseconds(500);
    constexpr int kTurns = 20;
    for (int i = 0; i < kTurns; ++i) {
      if (opened.WaitForConnected(std::chrono::system_clock::now() + kTurn)) return true;
      if (opened.GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_CONNECTING) return false;
      if (AddressIn(options.control_file, options.address) != address) return false;
      const MutexLock lock(mu);
      if (stop || session.GivesUp(Now())) return false;
    }
    return false;
  }

  // False: there is no further connection.
  bool Pause(const Status& end) {
    const MutexLock lock(mu);
    const auto pause = stop ? std::nullopt : session.Disconnected(end, Now(), rng);
    return pause && !wake.WaitFor(mu, *pause, [&]() TP_REQUIRES(mu) { return stop; });
  }

  // The next connection, after as many tries as the session makes; the address is read anew for each.
  StatusOr<std::unique_ptr<Stream>> Dial() {
    while (true) {
      auto call = Open(AddressIn(options.control_file, options.address));
      if (call.ok() || !Pause(call.status())) return call;
    }
  }

  void Run(StatusOr<std::unique_ptr<Stream>> call);
};

// One life of the stream: Hello is said, messages go both ways until it ends. gRPC's threads, which all links
// of a process share, drive it: one read at a time, one write at a time.
class Link::Impl::Stream final : public grpc::ClientBidiReactor<v1::Frame, v1::Frame> {
 public:
  Stream(Impl& link, const std::shared_ptr<grpc::Channel>& channel)
      : link_(link), stub_(v1::Control::NewStub(channel)) {
    AddToken(&context_, link_.options.credentials.token);
    AddBuild(&context_, link_.options.build);
    stub_->async()->Attach(&context_, this);
  }

  void Start(const std::deque<FromWorker>& first) {
    AddHold();  // writes begin on any thread, and not after the end
    Pack(first, 0, kFrameBytes, &out_.emplace_back());
    StartRead(&in_);
    StartWrite(&out_.front());
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  // Under Impl::mu: no write is under way, and one may begin.
  [[nodiscard]] bool MayWrite() const { return !writing_ && !over_; }
  void Writes() { writing_ = true; }
  // By the thread that said so.
  void Write(const std::deque<FromWorker>& batch) {
    WriteFrames(batch, kFrameBytes, [this](const v1::Frame& frame) {
      out_.push_back(frame);
      return true;
    });
    // No buffer_hint: a first message written with it waits for a second one that may never come.
    StartWrite(&out_.front());
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      auto messages = reader_.Take<ToWorker>(in_);
      in_.Clear();
      std::vector<Command> commands;
      {
        const MutexLock lock(link_.mu);
        refusal_ = link_.session.Heard(std::move(messages), Now(), commands);
      }
      if (!commands.empty())
        link_.sink({std::make_move_iterator(commands.begin()), std::make_move_iterator(commands.end())});
      if (refusal_.ok()) {
        StartRead(&in_);     // first: what there is to say may be much
        return link_.Say();  // after Attached
      }
      Cancel();
    }
    // Not cancelled where it has ended by itself: why is on its way, and would be forgotten.
    bool writing = false;
    {
      const MutexLock lock(link_.mu);
      over_ = true;
      writing = writing_;
    }
    if (!writing) RemoveHold();  // else OnWriteDone does
  }

  void OnWriteDone(bool ok) override {
    if (ok) out_.pop_front();
    if (ok && !out_.empty()) return StartWrite(&out_.front());
    bool over = false;
    {
      const MutexLock lock(link_.mu);
      writing_ = !ok;  // nothing more goes over it: the end of the read is on its way
      over = over_;
    }
    if (over || !ok) return RemoveHold();
    link_.Say();
  }

  void OnDone(const grpc::Status& status) override {
    const MutexLock lock(link_.mu);
    end_ = !refusal_.ok() ? refusal_
           : !status.ok() ? FromGrpc(status)
                          : Unavailable("the controller closed the connection");
    link_.stream = nullptr;
    link_.EndQuestions();
    link_.wake.NotifyAll();
  }

  // Under Impl::mu, after the end: why.
  [[nodiscard]] const std::optional<Status>& end() const { return end_; }

 private:
  Impl& link_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  // waits: the stream lasts as long as the run; Send cancels one over which nothing is heard
  grpc::ClientContext context_;
  // Of the read that is under way.
  v1::Frame in_;
  FrameReader reader_;
  Status refusal_;
  std::deque<v1::Frame> out_;  // of the write that is under way
  // Under Impl::mu. writing_: from the first moment, of Hello, or from Writes, to the last OnWriteDone.
  bool writing_ = true, over_ = false;
  std::optional<Status> end_;
};

std::unique_ptr<Link::Impl::Stream> Link::Impl::Begun(std::shared_ptr<grpc::Channel> opened) {
  auto call = std::make_unique<Stream>(*this, opened);
  std::deque<FromWorker> first(1);
  {
    const MutexLock lock(mu);
    first.front().body = session.Greet(options.hello, Now());
    EndQuestions();  // over the channel of before
    channel = std::move(opened);
    stream = call.get();
    if (stop) call->Cancel();
  }
  call->Start(first);
  return call;
}

void Link::Impl::Say() {
  Stream* at = nullptr;
  std::deque<FromWorker> batch;
  {
    const MutexLock lock(mu);
    if (stream == nullptr || !stream->MayWrite()) return;
    for (FromWorker& message : session.TakeUnsent()) batch.push_back(std::move(message));
    if (batch.empty()) return;
    at = stream;
    at->Writes();
  }
  at->Write(batch);  // it cannot end before its write has
}

void Link::Impl::Run(StatusOr<std::unique_ptr<Stream>> call) {
  Status end;
  while (call.ok()) {
    {
      const MutexLock lock(mu);
      const auto over = [&]() TP_REQUIRES(mu) { return (*call)->end().has_value(); };
      while (!wake.WaitFor(mu, std::chrono::seconds(1), over)) {
      }
      end = *(*call)->end();
    }
    call->reset();
    if (!Pause(end)) break;
    call = Dial();
    if (!call.ok()) end = call.status();
  }
  bool attached = false;
  {
    const MutexLock lock(mu);
    if (stop) return;
    attached = session.ctl_epoch() > 0;
  }
  // Whoever was attached once was of the right build and run: another process at its place may be again.
  sink({LinkClosed{end.message(), attached ? 3 : ExitCodeOf(end)}});
}

Link::Link() = default;

namespace {

StatusOr<uint64_t> DrawProcess() {
  uint64_t process = 0;
  std::ifstream random("/dev/urandom", std::ios::binary);
  if (!random.read(reinterpret_cast<char*>(&process), sizeof(process)))
    return Unavailable("/dev/urandom cannot be read");
  return process;
}

}  // namespace

StatusOr<std::unique_ptr<Link>> Link::Connect(const LinkOptions& options,
                                              std::function<void(std::vector<LinkEvent>)> sink) {
  SetUpGrpc();
  TP_ASSIGN_OR_RETURN(const uint64_t process, DrawProcess());
  std::unique_ptr<Link> link(new Link());
  link->impl_ = std::make_unique<Impl>(options, process);
  Impl& impl = *link->impl_;
  impl.sink = std::move(sink);
  auto call = impl.Dial();
  if (!call.ok() && !impl.not_believed.empty()) return FailedPrecondition(impl.not_believed);
  if (!call.ok()) return call.status();
  if (const auto& identity = options.credentials.identity)
    impl.renewal = NewcomerRenewal::Of(
        *identity, [&impl](const std::string& request) { return impl.AskToRenew(request); });
  if (impl.renewal != nullptr)
    impl.renews = std::jthread([&impl](const std::stop_token& over) { impl.Renew(over); });
  impl.pump = std::jthread([&impl, c = std::move(call)](std::stop_token) mutable { impl.Run(std::move(c)); });
  return link;
}

Link::~Link() {
  if (impl_ == nullptr) return;
  {
    const MutexLock lock(impl_->mu);
    impl_->stop = true;
    if (impl_->stream != nullptr) impl_->stream->Cancel();
    impl_->wake.NotifyAll();
    impl_->renews.request_stop();
    impl_->EndQuestions();
  }
  if (impl_->pump.joinable())
    impl_->pump.join();  // waits: cancelled above; an attempt to come back looks twice a second
}

void Link::Send(FromWorkerBody body) {
  {
    const MutexLock lock(impl_->mu);
    impl_->session.Send(std::move(body));
    // Heartbeats come here at all times.
    if (impl_->stream != nullptr && impl_->session.Silent(Impl::Now())) impl_->stream->Cancel();
  }
  impl_->Say();
}

void Link::Begin(int64_t ctl_epoch) {
  const MutexLock lock(impl_->mu);
  impl_->session.Begin(ctl_epoch);
}

void Link::SetPermit(double permit_s, double patience_s) {
  const MutexLock lock(impl_->mu);
  impl_->session.SetPermit(permit_s, patience_s);
}

int64_t Link::ctl_epoch() const {
  const MutexLock lock(impl_->mu);
  return impl_->session.ctl_epoch();
}

bool Link::MayServe() const {
  const MutexLock lock(impl_->mu);
  return impl_->session.MayServe(Impl::Now());
}

namespace {

constexpr auto kSaidWithin = std::chrono::seconds(20);     // what is set, with a new connection in between
constexpr auto kBetween = std::chrono::milliseconds(100);  // two questions where nobody answers

}  // namespace

class Link::Meeting final : public comm::Rendezvous {
 public:
  Meeting(Impl& link, std::string meeting) : link_(link), meeting_(std::move(meeting)) {}

  Status Set(const std::string& key, const std::string& value) override {
    v1::MeetRequest request;
    request.add_keys(key);
    request.set_set(value);
    return Ask(request, Clock::now() + kSaidWithin).status();
  }
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         std::chrono::milliseconds patience) override {
    v1::MeetRequest request;
    request.mutable_keys()->Assign(keys.begin(), keys.end());
    const auto until = Clock::now() + patience;
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      request.set_get_ms(std::clamp<int64_t>(left, 0, 1000));
      TP_ASSIGN_OR_RETURN(const v1::MeetReply reply, Ask(request, until));
      if (static_cast<size_t>(reply.values_size()) == keys.size())
        return std::vector<std::string>(reply.values().begin(), reply.values().end());
      if (left <= 0)
        return DeadlineExceeded("rendezvous of training group " + meeting_ + ": not all ranks came within " +
                                std::to_string(patience.count()) + " ms");
    }
  }
  // Once: what is not answered may have been done.
  StatusOr<int64_t> Add(const std::string& key, int64_t n) override {
    v1::MeetRequest request;
    request.add_keys(key);
    request.set_add(n);
    TP_ASSIGN_OR_RETURN(const v1::MeetReply reply, Ask(request, Clock::now()));
    return reply.sum();
  }

 private:
  // Again until then where no controller answers.
  StatusOr<v1::MeetReply> Ask(v1::MeetRequest request, Clock::time_point until) {
    request.set_meeting(meeting_);
    while (true) {
      std::shared_ptr<grpc::Channel> channel;
      {
        const MutexLock lock(link_.mu);
        channel = link_.channel;
        request.set_inc(link_.session.inc().value + 1);
      }
      Impl::Question question(link_, kQuestionWithin);
      v1::MeetReply reply;
      const Status asked = FromGrpc(v1::Control::NewStub(channel)->Meet(&question.context, request, &reply));
      if (asked.ok()) return reply;
      const bool again = asked.code() == StatusCode::kUnavailable ||
                         asked.code() == StatusCode::kDeadlineExceeded ||
                         asked.code() == StatusCode::kCancelled;
      // kDeadlineExceeded is what the controller says of ranks: one that does not answer is another thing.
      if (again && Clock::now() >= until)
        return Unavailable("rendezvous of training group " + meeting_ + ": " + asked.message());
      if (!again) return asked.At("rendezvous of training group " + meeting_);
      std::this_thread::sleep_for(kBetween);
    }
  }

  Impl& link_;
  const std::string meeting_;
};

std::unique_ptr<comm::Rendezvous> Link::MeetingAt(const std::string& meeting) {
  return std::make_unique<Meeting>(*impl_, meeting);
}

std::pair<std::shared_ptr<grpc::Channel>, v1::FetchRowsRequest> Link::Impl::RowsOf(int64_t lease,
                                                                                   StepNumber step,
                                                                                   int64_t rank) {
  v1::FetchRowsRequest request;
  request.set_lease(lease);
  request.set_step(step.value);
  request.set_rank(rank);
  const MutexLock lock(mu);
  request.set_inc(session.inc().value + 1);
  return {channel, std::move(request)};
}

StatusOr<std::vector<BatchRow>> Link::FetchRows(int64_t lease, StepNumber step, int64_t rank) {
  const auto [channel, request] = impl_->RowsOf(lease, step, rank);
  auto stub = v1::Control::NewStub(channel);
  Impl::Question question(*impl_, kListPatience);
  auto reader = stub->FetchRows(&question.context, request);
  auto rows = ReadRows([&](v1::Frame* frame) { return reader->Read(frame); });
  if (!rows.ok()) {
    question.context.TryCancel();
    return rows;
  }
  TP_RETURN_IF_ERROR(FromGrpc(reader->Finish()).At("fetch rows of lease " + std::to_string(lease)));
  return rows;
}

StatusOr<PayloadsRead> Link::FetchPayloads(int64_t lease, StepNumber step, int64_t rank, const Enqs& which,
                                           const std::function<bool()>& go_on) {
  const auto [channel, of] = impl_->RowsOf(lease, step, rank);
  Impl::Question question(*impl_, PatienceForRows(which));
  return AskForRows(channel, question.context, of, which, go_on);
}

}  // namespace tidepool::workers
