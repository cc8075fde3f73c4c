#include "workers/net/worker_session.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tidepool::workers {
namespace {

// Refusals that another connection would meet as well. Whoever does not know the token of a worker that was
// attached is not its controller: that one is gone, and another run has its port.
bool IsFinal(const Status& end, bool was_attached) {
  return end.code() == StatusCode::kFailedPrecondition || end.code() == StatusCode::kPermissionDenied ||
         (end.code() == StatusCode::kUnauthenticated && !was_attached) ||
         end.code() == StatusCode::kInvalidArgument;
}

}  // namespace

up::Hello WorkerSession::Greet(up::Hello hello, TimePoint now) {
  greeted_ = now;
  hello.process = process_;
  hello.ctl_epoch = ctl_epoch_;
  hello.inc = inc_;
  hello.received = session_.taken();
  return hello;
}

bool WorkerSession::Silent(TimePoint now) const {
  return Seconds(now - std::max(greeted_, heard_)) > SilenceSeconds(permit_s_);
}

bool WorkerSession::MayServe(TimePoint now) const {
  return Seconds(now - heard_) < permit_s_ && unacknowledged() < kMostKept;
}

StatusOr<std::optional<Command>> WorkerSession::Receive(ToWorker message, TimePoint now) {
  if (const auto* refuse = std::get_if<down::Refuse>(&message.body))
    return refuse->again ? Unavailable(refuse->why) : FailedPrecondition(refuse->why);
  if (const auto* attached = std::get_if<down::Attached>(&message.body)) {
    if (attached->ctl_epoch < ctl_epoch_)
      return Unavailable("a controller of epoch " + std::to_string(attached->ctl_epoch) +
                         " answers, and epoch " + std::to_string(ctl_epoch_) + " has begun");
    const bool is_new = attached->ctl_epoch > ctl_epoch_;
    if (is_new) {
      session_.Reset();
      ctl_epoch_ = attached->ctl_epoch;
      begun_ = false;
    }
    if (!session_.Connected(attached->received))
      return FailedPrecondition("the controller says that it took messages that were never sent");
    session_.Acked(message.ack);
    attached_ = true;
    attached_at_ = heard_ = now;
    if (!is_new) return std::optional<Command>();
    return std::optional<Command>({ctl_epoch_, std::move(message.body)});
  }
  if (!attached_) return Unavailable("the first answer has to be Attached");
  heard_ = now;
  lost_.reset();  // a controller that says no more than Attached is not there yet
  session_.Acked(message.ack);
  if (message.seq == 0) return std::optional<Command>();
  switch (session_.Take(message.seq)) {
    case Session<FromWorker>::Verdict::kOld:
      return std::optional<Command>();
    case Session<FromWorker>::Verdict::kGap:
      return Unavailable("a command is missing");
    case Session<FromWorker>::Verdict::kNew:
      break;
  }
  session_.Durable(message.seq);  // what a process forgets when it ends is lost with it
  if (const auto* welcome = std::get_if<down::Welcome>(&message.body)) inc_ = welcome->inc;
  return std::optional<Command>({ctl_epoch_, std::move(message.body)});
}

Status WorkerSession::Heard(StatusOr<std::vector<ToWorker>> messages, TimePoint now,
                            std::vector<Command>& commands) {
  TP_RETURN_IF_ERROR(messages.status());
  if (attached_ && messages->empty()) heard_ = now;  // a part of a message
  for (ToWorker& message : *messages) {
    TP_ASSIGN_OR_RETURN(auto command, Receive(std::move(message), now));
    if (command) commands.push_back(*std::move(command));
  }
  return OkStatus();
}

void WorkerSession::Send(FromWorkerBody body) {
  if (std::holds_alternative<up::Heartbeat>(body)) {
    beat_ = FromWorker{0, 0, std::move(body)};
  } else if (begun_) {
    session_.Put(FromWorker{0, 0, std::move(body)});
  }
}

std::vector<FromWorker> WorkerSession::TakeUnsent() {
  if (!attached_) return {};
  std::vector<FromWorker> out = session_.TakeUnsent();
  if (beat_) {
    beat_->ack = session_.durable();
    out.push_back(*std::exchange(beat_, std::nullopt));
  }
  return out;
}

std::optional<Duration> WorkerSession::Disconnected(const Status& end, TimePoint now, Rng& rng) {
  if (IsFinal(end, ctl_epoch_ > 0)) return std::nullopt;
  if (attached_ && Seconds(now - attached_at_) >= permit_s_) dials_ = 0;
  attached_ = false;
  if (!lost_) lost_ = now;
  if (now - *lost_ >= patience_) return std::nullopt;
  // 50 ms, doubled up to 2 s, less up to a half: workers that lost one controller do not come back as one.
  const double most =
      std::min(0.05 * static_cast<double>(int64_t{1} << std::min<int64_t>(dials_++, 10)), 2.0);
  return FromSeconds(most * (1 - 0.5 * rng.Uniform()));
}

}  // namespace tidepool::workers
