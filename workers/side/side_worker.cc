#include "workers/side/side_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/config/load.h"
#include "core/observe/log.h"
#include "workers/net/auth.h"
#include "workers/net/resolved_config.h"

namespace tidepool::workers {

void SideWorker::Failed(const char* what, const Status& status) {
  observe::Log(observe::LogLevel::kError, what, {{"why", status.message()}});
  exit_code_ = 2;
}

int SideWorker::Run(const SideWorkerOptions& options, scheduler::WorkerKind kind) {
  const auto connect = [&]() -> Status {
    LinkOptions link;
    TP_ASSIGN_OR_RETURN(link.token, ReadTokenFile(options.token_file));
    link.address = options.address;
    link.control_file = options.control_file;
    link.hello.run_id = options.run_id;
    link.hello.place = options.place;
    link.hello.kind = kind;
    link.hello.pid = getpid();
    TP_RETURN_IF_ERROR(BeforeAttach(link.hello));
    TP_ASSIGN_OR_RETURN(
        link_, Link::Connect(link, [this](std::vector<LinkEvent> e) { inbox_.PutAll(std::move(e)); }));
    return OkStatus();
  };
  if (const Status attached = connect(); !attached.ok()) {
    Failed("attach", attached);
    return exit_code_;
  }
  while (exit_code_ < 0) {
    for (LinkEvent& event : inbox_.TakeAll(UntilNext())) {
      On(event);
      if (exit_code_ >= 0) break;
    }
    Answer();
    Beat();
  }
  End();
  if (trace_) (void)trace_->Flush();  // the end: a trace that cannot be written is only shorter
  return exit_code_;
}

void SideWorker::On(LinkEvent& event) {
  if (auto* closed = std::get_if<LinkClosed>(&event)) {
    observe::Log(observe::LogLevel::kWarn, "controller_lost", {{"why", closed->why}});
    exit_code_ = 3;
    return;
  }
  Command& message = std::get<Command>(event);
  if (message.ctl_epoch < link_->ctl_epoch()) return;  // its controller has a successor
  if (std::holds_alternative<down::Attached>(message.body)) {
    link_->Begin(message.ctl_epoch);
    Send(up::Offer{.last = true});  // what is under way here is asked for again
  } else if (const auto* welcome = std::get_if<down::Welcome>(&message.body)) {
    if (const Status begun = Welcomed(*welcome); !begun.ok()) Failed("begin", begun);
  } else if (std::holds_alternative<down::Shutdown>(message.body)) {
    exit_code_ = 0;
  } else if (inc_.valid()) {
    Take(message.body);
  }
}

Status SideWorker::Welcomed(const down::Welcome& welcome) {
  TP_ASSIGN_OR_RETURN(const JobConfig config, ParseResolved(welcome.config_yaml));
  heartbeat_s_ = config.cluster.heartbeat_s;
  link_->SetLease(welcome.lease_s,
                  std::max(LostAfterSeconds(welcome.lease_s), config.cluster.reattach_grace_s));
  if (welcome.inc == inc_) return OkStatus();
  if (inc_.valid()) End();
  inc_ = welcome.inc;
  return Begin(config, welcome, inc_);
}

void SideWorker::Beat() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_beat_) return;
  next_beat_ = now + std::chrono::milliseconds(static_cast<int64_t>(heartbeat_s_ * 1000));
  up::Heartbeat beat;
  Describe(beat);
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  beat.rss_bytes = usage.ru_maxrss * 1024;
  Send(std::move(beat));
  if (trace_) (void)trace_->Flush();
}

}  // namespace tidepool::workers
