// Worker processes, and what comes and goes over their connections.

#include <signal.h>

#include <algorithm>

#include "core/observe/log.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {

// --- processes

void ControllerProcess::Do(const cmd::StartWorker& c) {
  if (!config_.cluster.launch_workers) return;
  due_[c.worker.value] = Clock::now() + std::chrono::duration_cast<Clock::duration>(c.delay);
  StartDueWorkers();
}

void ControllerProcess::StartDueWorkers() {
  for (auto it = due_.begin(); it != due_.end();) {
    if (Clock::now() < it->second) {
      ++it;
      continue;
    }
    const int64_t place = it->first;
    it = due_.erase(it);
    const bool device = place < options_.device_workers();
    const std::string name = PlaceName(place);
    const std::string security =
        request_.run_dir + "/security/" + (device ? "device" : SideName()) + ".token";
    std::vector<std::string> argv;
    if (device) {
      argv = {request_.worker_path, "run"};
    } else {
      argv = {request_.self_path, SideName() + "-worker"};
      if (fragments_ != nullptr) argv.push_back("--vector");
    }
    for (const std::string& word :
         {"--connect=" + hub_->address(), "--token-file=" + security, "--run-id=" + request_.run_id,
          "--place=" + std::to_string(place), "--control-file=" + request_.run_dir + "/control.json"}) {
      argv.push_back(word);
    }
    const Status started = launcher_.Start(place, argv, request_.run_dir + "/logs/" + name + ".log");
    if (!started.ok()) Feed(ev::WorkerStartFailed{{place}, started.message()});
  }
}

// Workers beside the devices: they grade, or host environments.
std::string ControllerProcess::SideName() const {
  return config_.environment() == nullptr ? "reward" : "environment";
}

std::string ControllerProcess::PlaceName(int64_t place) const {
  const int64_t devices = options_.device_workers();
  return place < devices ? "device-" + std::to_string(place)
                         : SideName() + "-" + std::to_string(place - devices);
}

void ControllerProcess::CheckChildren() {
  for (const Ended& ended : launcher_.Reap()) {
    if (joined_.contains(ended.place)) {
      if (pid_of_[ended.place] != ended.pid)
        continue;  // it found its place taken by a process that came back
      attachments_->Fence(ended.place, ended.why);
      Lose(ended.place, inc_of_[ended.place], ended.why, /*by_exit=*/true);
      continue;
    }
    attachments_->Fence(ended.place, ended.why);
    // It died before it had joined (or it was already lost).
    if (!lost_.contains(ended.place))
      Feed(ev::WorkerStartFailed{{ended.place}, ended.why + "; see " + request_.run_dir + "/logs/"});
    lost_.erase(ended.place);
  }
}

void ControllerProcess::Do(const cmd::KillWorker& c) {
  const int64_t place = c.worker.worker.value;
  Warn("kill worker=" + std::to_string(place) + " why=" + c.why);
  launcher_.Kill(place, SIGKILL);
  // It is gone, and the place may have another process by now.
  if (c.worker.inc.valid() && (!joined_.contains(place) || inc_of_[place] != c.worker.inc)) return;
  if (joined_.contains(place)) {
    Forget(place);
    lost_.insert(place);
  }
  attachments_->Fence(place, c.why);
}

void ControllerProcess::Do(const cmd::Welcome& c) {
  const int64_t place = c.worker.value;
  if (inc_of_[place] != c.inc) return;  // another has come since
  down::Welcome w;
  w.inc = c.inc;
  w.place = place;
  w.slot = place < options_.device_workers() ? SlotId{place} : SlotId{};
  w.lease_s = LeaseSeconds();
  w.config_yaml = request_.config_yaml;
  w.run_dir = request_.run_dir;
  w.run_id = request_.run_id;
  w.model_dir = request_.model_dir;
  w.run_clock_ns = Now().since_start.count();
  if (attachments_->Welcome(place, c.process, std::move(w)))
    intake_->Adopt({c.worker, c.inc}, std::exchange(offered_[place], {}));
}

void ControllerProcess::Do(const cmd::RefuseWorker& c) {
  if (attachments_->Refuse(c.worker.value, c.process, c.why)) Forget(c.worker.value);
}

void ControllerProcess::Forget(int64_t place) {
  joined_.erase(place);
  offered_.erase(place);
  weights_address_.erase(place);
  environment_of_.erase(place);
  metrics_->OnHold(place, Role::kNone, Now());
}

void ControllerProcess::Lose(int64_t place, Incarnation inc, const std::string& why, bool by_exit) {
  Forget(place);
  if (!by_exit) lost_.insert(place);
  Feed(ev::WorkerLost{{{place}, inc.valid() ? inc : inc_of_[place]}, why, by_exit});
}

// --- the wire

void ControllerProcess::OnAttachment(Attachments::Event& event) {
  std::visit(
      Overload{[&](Attachments::Arrived& e) { OnArrived(e); }, [&](Attachments::Message& e) { OnMessage(e); },
               [&](Attachments::Lost& e) { Lose(e.place, e.inc, e.why, /*by_exit=*/false); },
               [&](Attachments::Superseded& e) {
                 superseded_ = true;
                 Do(cmd::Finish{
                     3, "controller epoch " + std::to_string(e.ctl_epoch) + " has taken over this run"});
               }},
      event);
}

void ControllerProcess::OnArrived(Attachments::Arrived& e) {
  const int64_t place = e.place;
  joined_.insert(place);
  lost_.erase(place);
  pid_of_[place] = e.hello.pid;
  weights_address_[place] = e.hello.weights_address;
  if (fragments_ != nullptr && !e.hello.environment_address.empty()) {
    environment_of_[place] = {e.hello.environment_address, e.hello.environment_token};
  }
  auto joined = JoinedBy(e, PlaceName(place));
  offered_[place] = std::move(e.offer.attempts);
  Feed(std::move(joined));
}

void ControllerProcess::OnMessage(Attachments::Message& e) {
  const int64_t place = e.place;
  const WorkerRef worker{{place}, e.inc};
  std::visit(Overload{
                 [&](up::Hello&) {},
                 [&](up::Offer&) {},
                 [&](up::Heartbeat& b) {
                   metrics_->OnHeartbeat(place, b);
                   ev::Heartbeat beat{worker, std::nullopt, std::move(b.op), b.op_seq};
                   if (b.has_engine)
                     beat.engine = ev::EngineSample{b.kv_usage, b.running, b.waiting, b.step_s, b.decode_s};
                   Feed(std::move(beat));
                 },
                 [&](up::StepTokens& b) {
                   metrics_->OnTokens(b, Now());
                   intake_->Take(worker, b);
                 },
                 [&](up::Graded& b) {
                   metrics_->OnGraded(b);
                   b.grader = worker;
                   Feed(ev::Graded(std::move(b)));
                 },
                 [&](up::EnvStepped& b) { Feed(turns_->Take(worker, std::move(b))); },
                 [&](up::Granted& b) {
                   metrics_->OnHold(place, granted_[place], Now());
                   b.worker = worker;
                   Feed(std::move(b));
                 },
                 [&](up::Loaded& b) {
                   metrics_->OnLoaded(b);
                   b.worker = worker;
                   Feed(ev::Loaded(std::move(b)));
                 },
                 [&](up::TrainDone& b) {
                   metrics_->OnTrainDone(b);
                   b.worker = worker;
                   Feed(ev::TrainDone(std::move(b)));
                 },
                 [&](up::CheckpointFiles& b) { CommitCheckpoint(b); },
                 [&](up::FinalSaved& b) { OnFinalSaved(worker, b); },
                 [&](auto& event) {  // the scheduler's own
                   event.worker = worker;
                   Feed(std::move(event));
                 },
             },
             e.body);
}

}  // namespace tidepool::workers
