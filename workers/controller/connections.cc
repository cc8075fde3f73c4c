// Worker processes, and what comes and goes over their connections.

#include <signal.h>

#include <algorithm>

#include "core/base/loopback.h"
#include "core/observe/log.h"
#include "core/storage/run_directory.h"
#include "core/text/unicode.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"
#include "workers/controller/worker_command.h"
#include "workers/device/memory_plan.h"
#include "workers/net/bounded_text.h"

namespace tidepool::workers {
namespace {

// What a worker says of a failure goes into logs and messages: no more of it than people read.
void Shorten(std::string& why) {
  constexpr size_t kMost = 4000;
  why = Bounded(text::ReplaceInvalidUtf8(why), kMost);
}

}  // namespace

// --- processes

void ControllerProcess::Do(const cmd::StartWorker& c) {
  if (!config_.cluster.launch_workers) return;
  places_->Start(c, Now());
  StartDueWorkers();
}

void ControllerProcess::StartDueWorkers() {
  for (const int64_t place : places_->TakeDue(Now())) {
    const Status started = launcher_.Start(
        place, WorkerCommand(place),
        storage::RunPaths(request_.run_dir).logs() + "/" + PlaceName(place) + ".log", KeysOf(config_, place));
    if (!started.ok()) {
      Feed(ev::WorkerStartFailed{{place}, started.message()});
      continue;
    }
    Log(LogLevel::kInfo, started_.insert(place).second ? "worker_started" : "worker_restarted",
        {{"worker", PlaceName(place)}, {"pid", std::to_string(launcher_.Pid(place))}});
  }
}

std::vector<std::string> ControllerProcess::WorkerCommand(int64_t place) const {
  return tidepool::workers::WorkerCommand({.self_path = request_.self_path,
                                           .worker_path = request_.worker_path,
                                           .run_dir = request_.run_dir,
                                           .run_id = request_.run_id,
                                           .address = hub_->address(),
                                           .pool = request_.pool},
                                          config_, place);
}

void ControllerProcess::NameMissing(const std::vector<WorkerId>& absent) {
  if (config_.cluster.launch_workers) return;
  if (absent != missing_.places) missing_ = {absent, Now()};
  if (missing_.told || Now() - missing_.since < FromSeconds(kMissedSeconds)) return;
  missing_.told = true;
  for (const WorkerId place : absent) {
    std::string command;
    for (const std::string& word : WorkerCommand(place.value)) command += " " + word;
    Tell("nobody is " + PlaceName(place.value) +
             " (cluster.launch_workers is false); start it with:" + command,
         "worker_missing", {{"worker", PlaceName(place.value)}});
  }
}

std::string ControllerProcess::PlaceName(int64_t place) const { return tidepool::PlaceName(config_, place); }

void ControllerProcess::CheckChildren() {
  for (const Ended& ended : launcher_.Reap()) {
    metrics_->OnEnded(ended.place, ended.peak_bytes);
    places_->Ended(ended.place, ended.pid,
                   ended.why + (ended.in_order ? "" : "; see logs/" + PlaceName(ended.place) + ".log"),
                   ended.blames, ended.for_good());
  }
}

void ControllerProcess::Do(const cmd::KillWorker& c) {
  const int64_t place = c.worker.worker.value;  // its FAULT says why
  Log(LogLevel::kInfo, "worker_killed",
      {{"worker", PlaceName(place)}, {"pid", std::to_string(launcher_.Pid(place))}});
  launcher_.Kill(place, SIGKILL);
  places_->Kill(c);
}

void ControllerProcess::Do(const cmd::Welcome& c) {
  down::Welcome w;
  w.trains = MayTrain(config_, c.worker.value);
  w.permit_s = PermitSeconds();
  w.config_yaml = request_.config_yaml;
  w.run_dir = request_.run_dir;
  w.run_id = request_.run_id;
  w.model_dir = request_.model_dir;
  w.base_digest = request_.base_digest;
  w.shared_memory = shared_memory_;
  w.run_clock_ns = Now().since_start.count();
  w.operator_digest = operator_digest_;
  w.token_proof = token_proof_;
  if (!config_.model.is_policy()) {
    w.tokenizer = rows_->tokenizer().digest();
    w.tool_format = static_cast<int32_t>(rows_->tool_format());
  }
  w.sync_payload = !EndsWithTheMachine();
  if (const auto offered = places_->Welcome(c, std::move(w))) intake_->Adopt({c.worker, c.inc}, *offered);
}

void ControllerProcess::OnArrived(Attachments::Arrived& e) {
  // One that was there before this controller came back by itself. Where workers may be on other hosts, its
  // process id may be that of somebody else's process on this one.
  if (config_.cluster.launch_workers && IsLoopback(config_.cluster.bind) && launcher_.Pid(e.place) == 0) {
    launcher_.Adopt(e.place, static_cast<pid_t>(e.hello.pid));
    Log(LogLevel::kInfo, "worker_adopted",
        {{"worker", PlaceName(e.place)}, {"pid", std::to_string(e.hello.pid)}});
  }
  places_->Arrived(e, PlaceName(e.place));
}

// Nothing that the other one has is touched from now on. An exit code of its own, so that what starts
// controllers does not take the run back.
void ControllerProcess::TakenOver(const std::string& why) {
  superseded_ = true;
  Do(cmd::Finish{kTakenOver, why});
}

// --- the wire

void ControllerProcess::OnAttachment(Attachments::Event& event) {
  std::visit(
      Overload{[&](Attachments::Arrived& e) { OnArrived(e); }, [&](Attachments::Message& e) { OnMessage(e); },
               [&](Attachments::Lost& e) {
                 waits_for_.erase(e.place);
                 places_->Lost(e);
               },
               [&](Attachments::Superseded& e) {
                 TakenOver("controller epoch " + std::to_string(e.ctl_epoch) + " has taken over this run");
               }},
      event);
}

void ControllerProcess::OnMessage(Attachments::Message& e) {
  const int64_t place = e.place;
  const WorkerRef worker{{place}, e.inc};
  std::visit(Overload{
                 [&](up::Hello&) {},
                 [&](up::Offer&) {},
                 [&](up::Heartbeat& b) {
                   metrics_->OnHeartbeat(place, b);
                   OnWaitsFor(place, b.waits_for);
                   Feed(ev::Heartbeat{worker, std::move(b.engines), std::move(b.op), b.op_seq});
                 },
                 [&](up::StepTokens& b) {
                   metrics_->OnTokens(b, Now());
                   logged_->Note(worker, b);
                   intake_->Take(worker, b);
                 },
                 [&](up::SeesRun&) { logged_->Add(worker, place < options_.device_workers()); },
                 [&](up::LogsNoMore& b) {
                   logged_->Remove(worker);
                   Warn(PlaceName(place) +
                            " cannot write into tokens/, and sends what it samples here from now "
                            "on: " +
                            b.why,
                        "token_log", {{"worker", PlaceName(place)}});
                 },
                 [&](up::Stored& b) { logged_->Take(worker, b); },
                 [&](up::CannotRead& b) { logged_->Take(worker, b); },
                 [&](up::Graded& b) {
                   if (logged_->Again(worker, b)) return;
                   b.grader = worker;
                   Shorten(b.why);
                   // Else the scheduler refuses it: nothing of it counts, and nothing is kept.
                   if (controller_->ExpectsGrade(worker, b.tid, b.att)) OnVerdict(b);
                   Feed(ev::Graded(std::move(b)));
                 },
                 [&](up::EnvStepped& b) {
                   Shorten(b.why);
                   if (!b.unread && controller_->ExpectsTurn(worker, b.tid, b.att, b.turn))
                     metrics_->OnEnvironment(b);
                   logged_->Note(worker, b.logged);
                   if (!logged_->Again(worker, b, *turns_)) OnTurn(worker, std::move(b));
                 },
                 [&](up::Granted& b) {
                   const auto& granted = places_->places().at(place).granted;
                   const auto role = granted.find(b.slot);
                   if (role != granted.end()) metrics_->OnHold(b.slot, role->second, Now());
                   b.worker = worker;
                   Feed(std::move(b));
                 },
                 [&](up::Pulled& b) {
                   metrics_->OnPulled(b);
                   b.worker = worker;
                   Feed(ev::Pulled(std::move(b)));
                 },
                 [&](up::Loaded& b) {
                   metrics_->OnLoaded(b);
                   b.worker = worker;
                   Feed(ev::Loaded(std::move(b)));
                 },
                 [&](up::TrainDone& b) {
                   metrics_->OnTrainDone(b);
                   b.worker = worker;
                   for (const auto& [name, value] : b.metrics) {
                     if (name.starts_with("eval/")) b.held_out.emplace_back(name, value);
                   }
                   Feed(ev::TrainDone(std::move(b)));
                 },
                 [&](up::CheckpointFiles& b) { checkpoints_->Commit(b, storage_->next_lsn()); },
                 [&](up::FinalSaved& b) { checkpoints_->PublishFinal(worker, b); },
                 [&](auto& event) {  // the scheduler's own
                   event.worker = worker;
                   Feed(std::move(event));
                 },
             },
             e.body);
}

}  // namespace tidepool::workers
