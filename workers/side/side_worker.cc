#include "workers/side/side_worker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/process_memory.h"
#include "workers/net/auth.h"
#include "workers/net/resolved_config.h"
#include "workers/net/worker_log.h"

namespace tidepool::workers {

int SideWorker::Run(const SideWorkerOptions& options, scheduler::WorkerKind kind) {
  kind_ = kind == scheduler::WorkerKind::kReward ? "reward" : "environment";
  LogWorkerStart(kind_, options.place, options.address);
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
    LogWorkerFailure("attach_failed", attached.message());
    return 2;
  }
  while (!exit_code_) {
    for (LinkEvent& event : inbox_.TakeAll(UntilNext())) {
      On(event);
      if (exit_code_) break;
    }
    Answer();
    Beat();
  }
  End();
  LogWorkerEnd(*exit_code_);
  return *exit_code_;
}

void SideWorker::On(LinkEvent& event) {
  if (auto* closed = std::get_if<LinkClosed>(&event)) {
    LogWorkerFailure("controller_lost", "there is no controller for this worker any more: " + closed->why);
    exit_code_ = 3;
    return;
  }
  machine_.On(std::get<Command>(event), link_->ctl_epoch());
  exit_code_ = machine_.exit_code();
}

Status SideWorker::Welcomed(const down::Welcome& welcome, bool anew) {
  const auto begin = [&]() -> Status {
    TP_ASSIGN_OR_RETURN(const JobConfig config, ParseResolved(welcome.config_yaml));
    heartbeat_s_ = config.cluster.heartbeat_s;
    link_->SetPermit(welcome.permit_s,
                     std::max(LostAfterSeconds(welcome.permit_s), config.cluster.reattach_grace_s));
    if (!anew) return OkStatus();
    LogWorkerJoined(kind_, welcome, config);
    if (std::exchange(begun_, true)) End();
    return Anew(config, welcome);
  };
  const Status begun = begin();
  if (!begun.ok()) LogWorkerFailure("begin_failed", begun.message());
  return begun;
}

void SideWorker::Beat() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_beat_) return;
  next_beat_ = now + std::chrono::milliseconds(static_cast<int64_t>(heartbeat_s_ * 1000));
  up::Heartbeat beat;
  Describe(beat);
  beat.rss_bytes = PeakResidentBytes();
  Say(std::move(beat));
}

}  // namespace tidepool::workers
