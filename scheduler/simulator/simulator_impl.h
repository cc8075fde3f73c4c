#pragma once
// Inside of the simulator: the controller's surroundings and what they do with its commands (faults:
// simulator_faults.cc). Included by the simulator's own sources alone.

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/rng.h"
#include "scheduler/checker.h"
#include "scheduler/flat_table.h"
#include "scheduler/id_map.h"
#include "scheduler/ordered_ids.h"
#include "scheduler/simulator/engine_model.h"
#include "scheduler/simulator/journal_hash.h"
#include "scheduler/simulator/simulator.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {
constexpr double kHeartbeatSeconds = 30;

struct Simulator::Impl {
  struct Process {  // of a worker
    Incarnation inc;
    std::vector<SlotId> slots;
    int64_t beats = 0;
  };
  struct Engine {
    SlotRef ref;
    Role role = Role::kNone;
    SlotEpoch epoch;
    Version v;
    uint64_t weights = 0;
    EngineModel model;
    SmallSet<GroupId> groups;  // whose prompt is in its cache
    StepNumber state_step;
    uint64_t state = 0;
    int64_t group_epoch = 0;
    bool working = false, training = false;  // of slots that share a machine
    double slow = 1;                         // a slow node
    double noise = 1;                        // job.jitter
    uint32_t drawn = 0;
    bool beside = false;       // other slots of the machine are at work
    int64_t caches = 0;        // how often it gave its caches away
    double scoring_until = 0;  // what it was given by Preview will be computed then
  };
  enum class Kind : uint8_t { kEvent, kEngine, kTurn, kTick, kTrained, kFault };
  enum Fault : int64_t { kKill, kHang, kPartition, kSlowDisk, kStop, kControllerKill, kResume };
  struct Entry {
    double t;
    int64_t seq;
    Kind kind;
    int64_t a = 0, b = 0;
    SampleId tid;
    bool operator<(const Entry& o) const { return t != o.t ? t > o.t : seq > o.seq; }
  };
  struct Step {
    std::vector<command::Train> members;
    std::map<SlotId, double> seconds;  // of each rank
  };
  struct EarlyRow {  // of Preview
    SlotRef at;
    double done = 0, seconds = 0;
  };
  struct SampleFacts {
    int64_t engine = -1;  // where its KV is, -1: nowhere, and of which weights it is
    Version v;
    int64_t caches = 0;       // of the engine, then
    int64_t tokens = 0;       // so far
    int64_t turn_begin = -1;  // of an episode: its tokens where its turn began; -1: no turn is under way
  };

  SimJob job;
  CostModel cost;
  WorkloadDraws draws;
  FaultDealer faults;
  std::unique_ptr<Controller> controller;
  std::priority_queue<Entry> queue;  // all but ...
  OrderedIds<std::pair<double, int64_t>>
      stops;                // by time and sequence number: ... where engines stop next (Kind::kEngine)
  std::vector<Event> slab;  // events on their way
  std::vector<int64_t> free_slab;
  int64_t seq = 0;
  double now = 0;
  bool over = false;
  // Faults.
  bool faulty = false, resumes = false, stopping = false, down = false;
  double disk_slow_until = 0;
  std::map<WorkerId, double> last_out, partition_until;
  std::set<WorkerId> started;
  std::vector<JournalEntry> journal;                  // where the controller may be started again
  std::map<int64_t, uint64_t> checkpoints, recovery;  // weights by checkpoint, by step
  IdMap<WorkerId, Process> processes;                 // that live
  IdMap<SlotId, Engine> engines;                      // of their slots
  FlatTable<SampleId, SampleFacts> samples;
  std::map<int64_t, Step> training;  // by lease
  std::map<SampleId, EarlyRow> early;
  std::map<Version, uint64_t> published;
  record::Lease lease;
  int64_t records = 0;
  JournalHasher hash;
  Checker checker;
  SimReport report;
  std::vector<double> commits;
  std::vector<double> finishes;  // of samples since the last commit
  double first_start = -1;
  SlotTime time;
  double reported = 0;  // time of the last step report

  explicit Impl(const SimJob& j)
      : job(j),
        cost(j.hardware, j.model, j.devices_per_slot, j.engine_efficiency),
        draws(j.seed, j.lengths, j.turns, j.recorded_lengths, j.controller.rollout.max_new_tokens,
              j.controller.environment.max_turn_tokens),
        faults(j.faults, j.seed),
        samples(j.controller.batch.group_size) {
    if (job.true_lengths)
      job.controller.dispatch.oracle = [this](const SampleId& tid) { return draws.Length(tid); };
    ControllerOptions& c = job.controller;
    c.fleet.heartbeat_s = kHeartbeatSeconds;
    c.fleet.start_timeout_s = 1e7;  // nothing is lost here, and transfers of big models take long
    c.fleet.stall_timeout_s = 1e7;
    c.eval.before_train = c.eval.after_train = false;
    c.eval.every_steps = 0;
    c.seed = job.seed;
    faulty = job.faults.any();
    resumes = job.faults.stop_at_s > 0 || job.faults.controller_kill_mean_s > 0;
    // Others would be lost only after the long times of a calm cluster.
    if (faulty) c.fleet.heartbeat_s = job.tick_s;
  }

  // Faults (simulator_faults.cc).
  double Disturbed(const Event& event, double delay);
  void Arrive(const Event& event);
  void CountLost(const command::StartChunk& c);
  void Die(WorkerId worker, Incarnation inc, bool seen);
  void BeatWithFaults();
  void NextFault(Fault kind);
  void Befall(Fault kind);
  void Halt();
  void Resume();
  [[nodiscard]] double DiskFactor() const {
    return now < disk_slow_until ? faults.shape().disk_slow_factor : 1;
  }

  [[nodiscard]] bool Episodic() const { return job.controller.environment.used; }

  // --- queue

  void Push(double delay, Kind kind, int64_t a = 0, int64_t b = 0, const SampleId& tid = {});
  // The next thing to happen; false: nothing is left.
  bool Pop(Entry& next);
  void Send(Event event) { Send(std::move(event), job.message_s); }
  void Send(Event event, double delay);
  void Deliver(const Event& event);

  // --- engines

  [[nodiscard]] bool Lives(const WorkerRef& ref) const;
  Engine* Find(const SlotRef& ref);                       // nullptr: its process lives no more
  [[nodiscard]] bool Idle(const Process& process) const;  // none of its engines has work
  event::Heartbeat BeatOf(WorkerId worker, Process& process);
  void Schedule(Engine& e);
  // Slots of one machine: `changed` began or ended to work, the others feel it.
  void Share(Engine& changed);
  double Noise(Engine& e);
  bool SetFactor(Engine& e);
  // `delay`: until the step in which its last tokens were made is over.
  void Report(Engine& e, const EngineRun& r, event::ChunkEnd end, double delay = 0);
  void EngineStop(Engine& e);

  // --- commands

  void Note(const JournalRecord& r);
  // One overload a command, so that a new command does not compile until somebody decided what it means here.
  void Do(const command::Append&) {}        // Deliver has taken the records
  void Do(const command::RefuseWorker&) {}  // only workers that were asked for join
  void Do(const command::Admit&) {}         // an engine of the model serves what it has loaded
  void Do(const command::EvalReport&) {}
  void Do(const command::Log&) {}
  void Do(const command::StartWorker& c);
  void Do(const command::Welcome& c);
  void Do(const command::PrepareRow& c);
  void Do(const command::StartChunk& c);
  void Do(const command::CancelChunk& c);
  void Do(const command::ForgetGroup& c);
  void Do(const command::DiscardTokens& c) { samples.erase(c.tid); }
  void Do(const command::EndEpisode&) {}
  void Do(const command::EnvStep& c);
  void Do(const command::AppendObservation& c);
  void Do(const command::StorePayload& c);
  void Do(const command::Grade& c);
  void Do(const command::Drain& c);
  void Do(const command::Release& c);
  void Do(const command::Grant& c);
  void Do(const command::InitState& c) { Ready(SlotOf(c), c.request, {0}, Mix64(job.seed ^ 42), 1); }
  void Do(const command::FetchState& c);
  void Ready(const SlotRef& ref, int64_t request, StepNumber step, uint64_t digest, double seconds);
  void Do(const command::FormGroup& c);
  void Do(const command::Preview& c);
  void Do(const command::Train& c);
  // What further models say of a row.
  [[nodiscard]] double ScoreSeconds(const SampleId& tid, bool with_prompt) const;
  // Of that, what is left for the step of a share; and what was done before counts as work.
  double LateScores(const command::Train& c);
  [[nodiscard]] event::GivenRow GivenRowOf(const SampleId& tid, const std::vector<Version>& stale) const;
  void Trained(int64_t id);
  void Do(const command::AbortStep& c);
  void Do(const command::EndEvaluation&) {}
  void Do(const command::RestoreState& c);
  void Do(const command::KillWorker& c) { Die(c.worker.worker, c.worker.inc, false); }
  void Do(const command::VerifyCheckpoint& c);
  void Do(const command::DeleteCheckpoint& c) { checkpoints.erase(c.ckpt); }
  void Do(const command::KeepBest&) {}
  void Do(const command::CopyRecovery& c);
  void Do(const command::Publish& c);
  void Do(const command::Pull&) {}  // all slots are on one host
  void Do(const command::Load& c);
  void Do(const command::WriteCheckpoint& c);
  void Do(const command::SaveFinal&) { Send(event::FinalSaved{""}); }
  void Do(const command::StepReport& c);
  void Do(const command::Finish& c);

  void Fire(const Entry& entry);

  StatusOr<SimReport> Run();
  void Summarise();
};

}  // namespace tidepool::scheduler
