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
  return config_.environment.name.empty() ? "reward" : "environment";
}

std::string ControllerProcess::PlaceName(int64_t place) const {
  const int64_t devices = options_.device_workers();
  return place < devices ? "device-" + std::to_string(place)
                         : SideName() + "-" + std::to_string(place - devices);
}

void ControllerProcess::CheckChildren() {
  for (const Ended& ended : launcher_.Reap()) {
    const auto it = connection_of_.find(ended.place);
    if (it == connection_of_.end()) {
      // It died before it said Hello (or its connection was already reported lost).
      if (!lost_.contains(ended.place))
        Feed(ev::WorkerStartFailed{{ended.place}, ended.why + "; see " + request_.run_dir + "/logs/"});
      lost_.erase(ended.place);
      continue;
    }
    const ConnectionId connection = it->second;
    Lose(connection, ended.why, /*by_exit=*/true);
  }
}

void ControllerProcess::Do(const cmd::KillWorker& c) {
  Warn("kill worker=" + std::to_string(c.worker.worker.value) + " why=" + c.why);
  launcher_.Kill(c.worker.worker.value, SIGKILL);
  const auto it = connection_of_.find(c.worker.worker.value);
  if (it != connection_of_.end()) hub_->Close(it->second, c.why);
}

void ControllerProcess::Do(const cmd::Welcome& c) {
  const int64_t place = c.worker.value;
  const auto it = connection_of_.find(place);
  if (it == connection_of_.end()) return;
  inc_of_[place] = c.inc;
  down::Welcome w;
  w.place = place;
  w.slot = place < options_.device_workers() ? SlotId{place} : SlotId{};
  w.ctl_epoch = journal_->ctl_epoch();
  w.lease_s = 3 * config_.cluster.heartbeat_s;
  w.config_yaml = request_.config_yaml;
  w.run_dir = request_.run_dir;
  w.run_id = request_.run_id;
  w.model_dir = request_.model_dir;
  w.run_clock_ns = Now().since_start.count();
  hub_->Send(it->second, ToWorker{c.inc, 0, std::move(w)});
}

void ControllerProcess::Do(const cmd::RefuseWorker& c) {
  const auto it = connection_of_.find(c.worker.value);
  if (it == connection_of_.end()) return;
  hub_->Send(it->second, ToWorker{{}, 0, down::Refuse{c.why}});
  place_of_.erase(it->second);
  connection_of_.erase(it);
}

void ControllerProcess::Lose(ConnectionId connection, const std::string& why, bool by_exit) {
  const auto it = place_of_.find(connection);
  if (it == place_of_.end()) return;
  const int64_t place = it->second;
  place_of_.erase(it);
  connection_of_.erase(place);
  weights_address_.erase(place);
  environment_of_.erase(place);
  metrics_->OnHold(place, Role::kNone, Now());
  const Incarnation inc = inc_of_[place];
  if (!by_exit) lost_.insert(place);
  hub_->Close(connection, why);
  Feed(ev::WorkerLost{{{place}, inc}, why, by_exit});
}

// --- the wire

void ControllerProcess::OnHubEvent(HubEvent& event) {
  std::visit(Overload{[&](HubOpened& e) { OnOpened(e); }, [&](HubMessage& e) { OnMessage(e); },
                      [&](HubClosed& e) { Lose(e.connection, e.why, /*by_exit=*/false); }},
             event);
}

void ControllerProcess::OnOpened(HubOpened& e) {
  const bool device = e.hello.kind == scheduler::WorkerKind::kDevice;
  const int64_t first = device ? 0 : options_.device_workers();
  const int64_t end = device ? options_.device_workers()
                             : options_.device_workers() + std::max<int64_t>(options_.side_workers(), 1);
  int64_t place = e.hello.place;
  if (place < 0) {
    for (place = first; place < end && connection_of_.contains(place);) ++place;
  }
  if (place < first || place >= end || connection_of_.contains(place)) {
    hub_->Send(e.connection,
               ToWorker{{},
                        0,
                        down::Refuse{place < first || place >= end
                                         ? "the run has no such place for a worker (cluster.slots, "
                                           "reward.workers, environment.workers)"
                                         : "that place has a worker already"}});
    return;
  }
  place_of_[e.connection] = place;
  connection_of_[place] = e.connection;
  weights_address_[place] = e.hello.weights_address;
  if (fragments_ != nullptr && !e.hello.environment_address.empty()) {
    environment_of_[place] = {e.hello.environment_address, e.hello.environment_token};
  }
  lost_.erase(place);
  ev::WorkerJoined joined;
  joined.worker = {place};
  joined.name = PlaceName(place);
  joined.kind = e.hello.kind;
  if (device) joined.slot = {place};
  joined.device_bytes = e.hello.device_bytes;
  joined.restored_inc = e.hello.restored_inc;
  for (up::Held& held : e.hello.held) {
    Version oldest;
    Version newest;
    for (const auto& [version, count] : held.generated.versions) {
      if (!oldest.valid()) oldest = version;
      newest = version;
    }
    joined.held.push_back({held.tid, held.att, held.generated.size(), oldest, newest});
    StoredSample& s = samples_.Get(held.tid, held.att);
    s.tokens = std::move(held.generated);
  }
  Feed(std::move(joined));
}

void ControllerProcess::OnMessage(HubMessage& e) {
  const auto it = place_of_.find(e.connection);
  if (it == place_of_.end()) return;
  const int64_t place = it->second;
  const WorkerRef worker{{place}, e.message.inc};
  if (e.message.inc != inc_of_[place]) return;  // said before it was welcomed, or by an earlier life
  last_seq_[place] = e.message.seq;
  std::visit(Overload{
                 [&](up::Hello&) {},
                 [&](up::GroupFormed& b) {
                   Feed(ev::GroupFormed{worker, b.group_epoch, std::move(b.error)});
                 },
                 [&](up::StepAborted& b) {
                   Feed(ev::StepAborted{worker, b.lease, b.step, b.weights_digest});
                 },
                 [&](up::Heartbeat& b) {
                   metrics_->OnHeartbeat(place, b);
                   ev::Heartbeat beat{worker, std::nullopt, std::move(b.op), b.op_seq};
                   if (b.has_engine)
                     beat.engine =
                         ev::EngineSample{b.kv_usage, b.running, b.waiting, 0, b.step_s, b.decode_s};
                   Feed(std::move(beat));
                 },
                 [&](up::StepTokens& b) { OnTokens(worker, b); },
                 [&](up::Graded& b) {
                   metrics_->OnGraded(b);
                   Feed(ev::Graded{worker, b.tid, b.att, b.outcome, b.reward, std::move(b.rewards),
                                   std::move(b.why)});
                 },
                 [&](up::EnvStepped& b) { Feed(turns_->Take(worker, std::move(b))); },
                 [&](up::Drained& b) {
                   Feed(ev::Drained{worker, b.slot, b.epoch});
                 },
                 [&](up::Released& b) {
                   Feed(ev::Released{worker, b.slot, b.epoch, b.free_bytes});
                 },
                 [&](up::Granted& b) {
                   metrics_->OnHold(place, granted_[place], Now());
                   Feed(ev::Granted{worker, b.slot, b.epoch});
                 },
                 [&](up::Loaded& b) {
                   metrics_->OnLoaded(b);
                   Feed(ev::Loaded{worker, b.version, b.digest, std::move(b.error)});
                 },
                 [&](up::StateReady& b) {
                   Feed(ev::StateReady{worker, b.step, b.weights_digest, std::move(b.error)});
                 },
                 [&](up::TrainDone& b) {
                   metrics_->OnTrainDone(b);
                   DropLease(b.lease);
                   Feed(ev::TrainDone{worker, b.step, b.lease, b.finite, b.weights_digest, b.seconds});
                 },
                 [&](up::TrainFailed& b) {
                   DropLease(b.lease);
                   Feed(ev::TrainFailed{worker, b.step, b.lease, std::move(b.why), b.data});
                 },
                 [&](up::Published& b) {
                   Feed(ev::Published{worker, b.version, std::move(b.error)});
                 },
                 [&](up::RecoveryCopied& b) {
                   Feed(ev::RecoveryCopied{worker, b.step});
                 },
                 [&](up::CheckpointFiles& b) { CommitCheckpoint(b); },
                 [&](up::FinalSaved& b) { Feed(ev::FinalSaved{std::move(b.error)}); },
             },
             e.message.body);
}

void ControllerProcess::OnTokens(const WorkerRef& worker, up::StepTokens& step) {
  metrics_->OnTokens(step, Now());
  for (up::ChunkDelta& c : step.chunks) {
    const EncodedRow* row = samples_.FindRow(c.tid);
    if (row == nullptr) continue;  // cancelled meanwhile
    // Taken back from this worker: its tokens would come twice.
    const int64_t n = controller_->Expects(worker, c.tid, c.att) ? c.tokens.size() : 0;
    std::string why = std::move(c.why);
    ev::ChunkEnd end = c.end;
    bool ended = c.ended;
    if (n > 0) {
      const Status sound = fragments_ != nullptr ? fragments_->Check(c.tokens)
                                                 : c.tokens.Check(rows_->tokenizer().vocab_size());
      if (sound.ok()) {
        const Version version = c.tokens.versions.back().first;
        StoredSample& s = samples_.Get(c.tid, c.att);
        s.tokens.Append(c.tokens);
        if (environment_) s.loss_mask.resize(s.tokens.ids.size(), 1);
        Feed(ev::ChunkProgress{worker, c.tid, c.att, n, version});
      } else {
        ended = true;
        end = ev::ChunkEnd::kDataError;
        why = sound.message();
      }
    }
    if (!ended) continue;
    if (!controller_->Expects(worker, c.tid, c.att)) {
      Feed(ev::ChunkFinished{worker, c.tid, c.att, end, std::move(why)});
      continue;
    }
    StoredSample& s = samples_.Get(c.tid, c.att);
    s.finish = end == ev::ChunkEnd::kLength ? storage::FinishReason::kLength
               : end == ev::ChunkEnd::kStop ? storage::FinishReason::kStop
                                            : storage::FinishReason::kEos;
    Feed(ev::ChunkFinished{worker, c.tid, c.att, end, std::move(why)});
  }
}

void ControllerProcess::RenewLeases() {
  for (const auto& [connection, place] : place_of_) {
    hub_->Send(connection, ToWorker{inc_of_[place], last_seq_[place], down::LeaseRenewal{}});
  }
}

}  // namespace tidepool::workers
