#include "workers/side/side_worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/base/process_memory.h"
#include "core/base/running_call.h"
#include "core/observe/log.h"
#include "workers/build_info.h"
#include "workers/net/certificates.h"
#include "workers/net/exit_code.h"
#include "workers/net/resolved_config.h"
#include "workers/net/worker_log.h"

namespace tidepool::workers {

int SideWorker::Run(const SideWorkerOptions& options, scheduler::WorkerKind kind) {
  kind_ = kind == scheduler::WorkerKind::kReward ? "reward" : "environment";
  LogWorkerStart(kind_, options.address);
  const auto connect = [&]() -> Status {
    LinkOptions link;
    TP_ASSIGN_OR_RETURN(credentials_, ReadCredentials(options.token_file));
    link.credentials = credentials_;
    link.address = controller_ = options.address;
    link.control_file = options.control_file;
    link.hello.run_id = options.run_id;
    link.hello.place = options.place;
    link.hello.kind = kind;
    link.hello.pid = getpid();
    link.hello.host = observe::HostName();
    link.build = BuildInfo() + " on host " + observe::HostName();
    TP_RETURN_IF_ERROR(BeforeAttach(link.hello));
    TP_ASSIGN_OR_RETURN(
        link_, Link::Connect(link, [this](std::vector<LinkEvent> e) { inbox_.PutAll(std::move(e)); }));
    return OkStatus();
  };
  if (const Status attached = connect(); !attached.ok()) {
    LogWorkerFailure("attach_failed", attached.message());
    return ExitCodeOf(attached);
  }
  while (!exit_code_) {
    for (LinkEvent& event : inbox_.TakeAll(UntilNext())) {
      On(event);
      if (exit_code_) break;
    }
    Answer();
    pages_.Turned();
    EndIfOverdue();
    EndIfFailed();
    Beat();
  }
  End();
  LogWorkerEnd(*exit_code_);
  return *exit_code_;
}

void SideWorker::EndIfOverdue() {
  CallWatch* watch = Watch();
  const auto overdue = watch == nullptr ? std::nullopt : watch->Overdue(CallWatch::Clock::now());
  if (!overdue) return;
  LogWorkerFailure(kind_ + "_overdue", overdue->Late());
  RunningCall::Blame(overdue->what);
  observe::FlushLogs();
  std::_Exit(3);  // in order would be to wait for the thread that does not come back
}

void SideWorker::EndIfFailed() {
  const auto failed = Failed();
  if (!failed) return;
  LogWorkerFailure(kind_ + "_failed", failed->why);
  RunningCall::Blame(failed->what);
  exit_code_ = 3;
}

void SideWorker::StartCaller(std::function<void(const std::stop_token&)> body) {
  std::promise<void> over;
  Caller& caller = callers_.emplace_back();
  caller.over = over.get_future();
  caller.thread =
      std::jthread([body = std::move(body), over = std::move(over)](const std::stop_token& stop) mutable {
        body(stop);
        over.set_value();
      });
}

void SideWorker::StopCallers() {
  for (Caller& caller : callers_) caller.thread.request_stop();
  for (const Caller& caller : callers_) Await(caller.over);
  callers_.clear();
}

// waits: the calls of plug-ins have limits, and EndIfOverdue ends the process at theirs
void SideWorker::Await(const std::future<void>& over) {
  constexpr std::chrono::seconds kUsual{1};  // less than the controller waits for an end in order
  const auto begin = CallWatch::Clock::now();
  for (bool said = false; over.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready;) {
    EndIfOverdue();
    if (said || CallWatch::Clock::now() - begin < kUsual) continue;
    said = true;
    const auto oldest = Watch() == nullptr ? std::nullopt : Watch()->Oldest();
    if (!oldest) continue;
    LogWorkerFailure("end_waits", "the end waits for " + oldest->call.what + " on " + oldest->call.on);
    if (ending()) RunningCall::Blame(oldest->call.what);  // whoever has no patience and kills this process
  }
}

void SideWorker::On(LinkEvent& event) {
  if (auto* closed = std::get_if<LinkClosed>(&event)) {
    LogWorkerFailure("controller_lost", "there is no controller for this worker any more: " + closed->why);
    exit_code_ = closed->exit_code;
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
    pages_.Welcomed(kind_, config, welcome, credentials_, controller_);
    LogWorkerJoined(kind_, welcome, config, link_->ctl_epoch(), anew);
    if (!anew) return OkStatus();
    if (std::exchange(begun_, true)) End();
    return Anew(config, welcome);
  };
  const Status begun = begin();
  if (!begun.ok()) LogWorkerFailure("begin_failed", begun.message());
  if (begun.ok() && SeesRun()) Say(up::SeesRun{});
  return begun;
}

void SideWorker::LogUnseen(const Status& status) {
  const std::string why = status.ok() ? "the run's folder is not seen here" : status.message();
  observe::Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "run_unseen",
               {{"text", why + "; what this worker is to read is sent by the controller, until it ends"}});
}

void SideWorker::Beat() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_beat_) return;
  next_beat_ = now + std::chrono::milliseconds(static_cast<int64_t>(heartbeat_s_ * 1000));
  up::Heartbeat beat;
  Describe(beat);
  beat.rss_bytes = PeakResidentBytes();
  pages_.Show(beat, link_->MayServe());
  Say(std::move(beat));
}

}  // namespace tidepool::workers
