// What goes wrong, and what the model of a cluster does then.

#include "scheduler/simulator/simulator_impl.h"

namespace tidepool::scheduler {
namespace {

constexpr double kInOrder = 1e-9;   // seconds between two messages of one worker
constexpr double kExitSeen = 0.05;  // the launcher sees that a process is gone

// Who says it; an invalid worker where it is the controller's own process (storage).
WorkerRef Source(const Event& event) {
  return std::visit(
      [](const auto& x) -> WorkerRef {
        if constexpr (requires { x.worker.inc; })
          return x.worker;
        else if constexpr (requires { x.grader.inc; })
          return x.grader;
        else
          return {};
      },
      event);
}

bool ByLauncher(const Event& event) { return std::holds_alternative<event::WorkerLost>(event); }

}  // namespace

double FaultDealer::Gap(double mean) { return -std::log(1 - workers_.Uniform()) * mean; }

bool FaultDealer::Slow(int64_t slot, uint64_t seed) const {
  return shape_.slow_share > 0 &&
         SampleUniform(seed, Mix64(static_cast<uint64_t>(slot)), 0, 21) < shape_.slow_share;
}

// The delay it has after all; the connection keeps its order.
double Simulator::Impl::Disturbed(const Event& event, double delay) {
  const WorkerRef from = Source(event);
  if (!from.worker.valid() || ByLauncher(event)) return delay;
  double at = now + delay - job.message_s + faults.MessageDelay(job.message_s);
  if (const auto it = partition_until.find(from.worker); it != partition_until.end())
    at = std::max(at, it->second);
  double& last = last_out[from.worker];
  last = std::max(at, last + kInOrder);
  return last - now;
}

void Simulator::Impl::Arrive(const Event& event) {
  const WorkerRef from = Source(event);
  if (from.worker.valid() && !ByLauncher(event)) {
    if (!Lives(from)) return;  // it died with its process
  }
  const auto* progress = std::get_if<event::ChunkProgress>(&event);
  if (progress != nullptr && controller->Expects(SlotOf(*progress), progress->tid, progress->att))
    samples[progress->tid].tokens += progress->new_tokens;
  const bool twice = progress == nullptr && from.worker.valid() && !ByLauncher(event) && faults.Duplicate();
  Deliver(event);
  if (twice && !over && !down) Deliver(event);
}

// Tokens that had arrived and are asked for again.
void Simulator::Impl::CountLost(const command::StartChunk& c) {
  int64_t& known = samples[c.tid].tokens;
  if (c.generated < known) report.lost_tokens += known - c.generated;
  known = c.generated;
}

void Simulator::Impl::Die(WorkerId worker, Incarnation inc, bool seen) {
  const Process* process = processes.Find(worker);
  if (process == nullptr || (inc.valid() && process->inc != inc)) return;
  const WorkerRef ref{worker, process->inc};
  for (const SlotId slot : std::vector(process->slots)) {
    Engine& e = engines.at(slot);
    // What its steps had made so far had been sent.
    e.model.CatchUp(now);
    std::vector<event::ChunkProgress> sent;
    for (const SampleId& tid : e.model.Runs()) {
      const EngineRun r = e.model.Take(tid);
      if (seen && r.generated > 0) sent.push_back({ref, slot, tid, r.att, r.generated, e.v});
    }
    for (const event::ChunkProgress& p : sent) {
      Arrive(p);
      if (over || down || !Lives(ref)) return;
    }
    time.Busy(Role::kRollout, e.model.TakeBusy());
    report.tokens += e.model.TakeTokens();
    time.Hold(slot.value, Role::kNone, now);
    for (const SampleId& tid : samples.SortedKeys()) {
      SampleFacts& s = samples.at(tid);
      if (s.engine == slot.value) s.engine = -1;
    }
    engines.erase(slot);
    stops.Remove(slot.value);
  }
  processes.erase(worker);
  ++report.deaths;
  if (seen) Send(event::WorkerLost{ref, "killed", true}, kExitSeen);
}

void Simulator::Impl::BeatWithFaults() {
  const auto speaks = [&](WorkerId worker) {
    const auto it = partition_until.find(worker);
    return it == partition_until.end() || it->second <= now;
  };
  std::vector<event::Heartbeat> beats;
  for (auto& [id, process] : processes) {
    if (speaks(id)) beats.push_back(BeatOf(id, process));
  }
  for (const event::Heartbeat& beat : beats) {
    if (over || down) return;
    Deliver(beat);
  }
  if (!over && !down) Deliver(event::Tick{});
  if (!over && !down) Push(job.tick_s, Kind::kTick);
}

void Simulator::Impl::NextFault(Fault kind) {
  const FaultShape& f = faults.shape();
  const double mean = kind == kKill        ? f.kill_mean_s
                      : kind == kHang      ? f.hang_mean_s
                      : kind == kPartition ? f.partition_mean_s
                      : kind == kSlowDisk  ? f.disk_slow_mean_s
                                           : f.controller_kill_mean_s;
  if (mean > 0) Push(faults.Gap(mean), Kind::kFault, kind);
}

void Simulator::Impl::Befall(Fault kind) {
  if (kind == kResume) return Resume();
  faults.Count();
  const FaultShape& f = faults.shape();
  const WorkerId worker{faults.Choose(job.controller.device_workers() + job.controller.side_workers())};
  switch (kind) {
    case kKill:
      Die(worker, {}, true);
      break;
    case kHang:
      Die(worker, {}, false);
      break;
    case kPartition:
      partition_until[worker] = now + f.partition_s;
      break;
    case kSlowDisk:
      disk_slow_until = now + f.disk_slow_s;
      break;
    case kStop:
      stopping = true;
      return Deliver(event::StopRequested{"SIGTERM", false});
    case kControllerKill:
      return Halt();
    case kResume:
      break;
  }
  if (!over && !down) NextFault(kind);
}

// The controller is gone, its workers end with it. What the journal has is what there is.
void Simulator::Impl::Halt() {
  down = true;
  stopping = false;
  queue = {};
  stops.Clear();
  slab.clear();
  free_slab.clear();
  for (auto& [id, e] : engines) {
    time.Busy(Role::kRollout, e.model.TakeBusy());
    report.tokens += e.model.TakeTokens();
    time.Hold(id.value, Role::kNone, now);
  }
  engines.clear();
  training.clear();
  samples.clear();
  last_out.clear();
  partition_until.clear();
  recovery.clear();
  processes.clear();
  Push(faults.shape().resume_s, Kind::kFault, kResume);
}

void Simulator::Impl::Resume() {
  down = false;
  ++report.lives;
  auto created = Controller::Create(job.controller, journal);
  TP_CHECK(created.ok()) << created.status().ToString();
  controller = std::move(created).value();
  for (const auto kind : {kKill, kHang, kPartition, kSlowDisk, kControllerKill}) NextFault(kind);
  Deliver(event::Started{});
  if (!over && !down) Push(job.tick_s, Kind::kTick);
}

}  // namespace tidepool::scheduler
