#pragma once
// A small model of everything around the controller: workers, trainer, graders, storage, in virtual time.
// The real Controller decides. One seed gives one run: faults, delays and lengths are drawn from it.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "scheduler/checker.h"
#include "scheduler/controller.h"
#include "tests/scheduler/sim_disk.h"

namespace tidepool::scheduler {

// Chances are per opportunity; `..._mean_s` are means of exponential gaps, 0: never.
struct SimFaults {
  double kill_mean_s = 0;  // some worker process dies
  double hang_mean_s = 0;  // some worker process stops answering
  double controller_crash_mean_s = 0;
  double crash_in_batch = 0;  // the controller dies between its records and its commands
  double start_fails = 0;
  bool for_good = false;         // what has died, or could not be started, would end so again
  bool last_stays_away = false;  // nobody ever comes to the last device place, and no start of it says why
  double infra = 0, grade_data = 0;  // per grading
  double row_invalid = 0;            // per row
  double nonfinite = 0, train_fails = 0;
  double lost_tokens = 0;  // chance that a sample's tokens cannot be read again when they are needed
  double bad_row = 0;      // share of samples that no trainer can use, whatever step they are in
  double bad_load = 0, load_error = 0, publish_error = 0, state_error = 0;
  double checkpoint_fails = 0, checkpoint_rots = 0;
  double best_fails_until_s = 0;  // best/ cannot be made before
  double chunk_error = 0;
  double engine_lost = 0;  // per step of an engine of several slots: they lose each other, and live
  double group_error = 0, fetch_error = 0, recovery_error = 0;
  double slow_drain = 0;    // a drain takes up to 30 s
  double keeps_memory = 0;  // a release frees too little
  double duplicate = 0;     // per event of a worker
  double lost_heartbeat = 0;
  double kv_pressure =
      0;  // engines report up to twice this share of their cache in use; above 0.5 a queue as well
  double stop_at_s = 0;         // SIGTERM
  double stop_now_after_s = 0;  // and a second one
  double heal_after_s = 1e9;    // no faults after this
};

struct SimOptions {
  ControllerOptions controller;
  uint64_t seed = 1;
  SimFaults faults;
  double equal_rewards = 0;  // share of groups without variance
  double mean_tokens = 12;   // of a sample
  double grading_s = 0.01;
  bool deterministic_training = true;  // weights depend on the rows alone
  bool loses_a_payload = false;        // of the first row that is leased
  bool blames_a_batch = false;         // the first step: its data are at fault, and no sample of it is named
  // No try of this step is finite, and after each that was not one fails half-way and loses the state; -1:
  // none. Of a job with one trainer.
  int64_t breaks_at_step = -1;
  // The rank whose first row has other bytes than were stored, or another mask; -1: none.
  int64_t rank_of_other_rows = -1, rank_of_other_mask = -1, rank_of_row_left_out = -1, rank_of_row_twice = -1;
  int64_t hosts = 1;          // worker i is on host i % hosts
  double pull_s = 0.05;       // for weights from one to another
  double limit_s = 20000;     // virtual
  bool check_online = false;  // the run ends at the first violation
  SimDisk* disk =
      nullptr;  // where journal and checkpoints go; null: into memory, without a fault but those above
};

struct SimResult {
  bool ended = false;  // a Finish came
  int code = -1;
  std::string why;
  int64_t lives = 0;  // of the controller
  double seconds = 0;
  int64_t events = 0, faults = 0;
  uint64_t weights = 0;  // digest of the last committed step
  uint64_t journal_hash = 0;
  CheckResult violation;  // with check_online
};

class SimCluster {
 public:
  explicit SimCluster(const SimOptions& options);
  ~SimCluster();

  // Runs the job; after a crash of the controller it is started again. Called again after a stop: resumes.
  SimResult Run();
  [[nodiscard]] const std::vector<JournalEntry>& journal() const { return journal_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  [[nodiscard]] const std::vector<command::StepReport>& reports() const { return reports_; }
  [[nodiscard]] const std::vector<command::EvalReport>& evals() const { return evals_; }
  [[nodiscard]] const std::vector<command::KeepBest>& kept_best() const { return kept_best_; }
  [[nodiscard]] bool IsBad(const SampleId& tid) const {  // no trainer can use it
    return options_.faults.bad_row > 0 &&
           SampleUniform(options_.seed, SampleUid(tid), 0, 7) < options_.faults.bad_row;
  }
  [[nodiscard]] int64_t started_workers() const { return started_workers_; }
  [[nodiscard]] Controller* controller() { return controller_.get(); }
  // Called before each command is executed (after its batch's records are durable).
  std::function<void(const Command&)> on_command;
  std::function<void(const Command&)> on_executed;  // and after it
  // Called before each event is handed in; false: the event is lost.
  std::function<bool(const Event&)> on_event;
  void Inject(const Event& event) { Deliver(event); }  // in place of one that on_event kept back
  // From within a hook: the controller dies at the end of this batch / before anything more of it is
  // executed.
  void CrashController();
  void CrashControllerNow() { crash_ = crash_now_ = true; }
  // The controller dies as its journal is about to become longer than this; so many records are kept. Once;
  // -1: never.
  int64_t cut_at_record = -1;
  void KillWorker(WorkerId worker);
  // Somebody starts a process for that place by hand, so many seconds from now.
  void Come(WorkerId worker, double in_s) {
    At(FromSeconds(in_s), [this, worker] { Spawn(worker); });
  }
  // The same, and what it has sent and nobody has received yet is lost with its connection.
  void KillWorkerUnsent(WorkerId worker);
  // The slots of that gang lose each other, and say so.
  void BreakEngine(SlotId first);
  [[nodiscard]] int64_t lives() const { return result_.lives; }

 private:
  // The state of a sample's tokens after the last one that was made by some weights.
  struct Mark {
    int64_t count = 0;
    uint64_t content = 0;
    Version v;
  };
  struct Tokens {
    int64_t count = 0;
    uint64_t content = 0;
    Version v_min, v_max;
    int64_t turn = 0, turn_start = 0;  // of an episode: turns on record, where the one after them begins
    std::vector<Mark> marks;           // one a version
    // Which version made which token is not modelled: the last token counts for the newest one.
    [[nodiscard]] std::vector<record::VersionTokens> Runs() const;
  };
  struct Chunk {
    SampleId tid;
    int32_t att = 0;
    int64_t left = 0;   // of this chunk
    int64_t limit = 0;  // of the sample, or of its turn
    Tokens tokens;      // of the sample so far
    bool cancelled = false;
    std::optional<event::ChunkEnd> end;  // it is over, and the controller has not said that it knows
  };
  struct Proc;
  struct Device {  // a slot of a process
    Proc* proc = nullptr;
    SlotId slot;
    std::map<std::pair<SampleId, int32_t>, Chunk> chunks;
    std::map<std::pair<SampleId, int32_t>, Chunk> ended;  // whose end may not have arrived
    Version version;       // in its memory, whole; invalid while a load overwrites it
    uint64_t weights = 0;  // their digest, as computed from the memory
    std::optional<Version> loading, pulling;
    TimePoint load_until;
    bool admitted = false, broken = false;
    std::optional<command::Drain> draining;
    StepNumber state_step;
    std::optional<event::TrainDone> done;  // that it said last
    uint64_t state = 0;                    // digest of the trainer's weights
    Shard shard;                           // of its optimizer
    SlotEpoch epoch{-1};
    Role role = Role::kNone;
    int64_t group_epoch = 0;
    int64_t in_step = -1;  // lease of the step it is inside of

    // Both roles share one arena of weights: what the trainer writes is no version until it is loaded.
    void SetState(StepNumber step, uint64_t digest) { state_step = step, state = digest, version = {}; }
    void LoseState() { SetState({}, 0); }
  };
  using DeviceKey = std::pair<int64_t, SlotId>;  // of a process
  struct Proc {
    int64_t id = 0;
    WorkerId worker;
    WorkerKind kind = WorkerKind::kDevice;
    Incarnation inc;
    bool alive = true, hung = false, joined = false;
    TimePoint last_out;  // its events arrive in order
    int64_t asked = 0;   // when it last asked to be welcomed: a number of `asks_`
    int64_t op_seq = 0;
    std::map<SlotId, Device> devices;  // since it was welcomed
    [[nodiscard]] WorkerRef ref() const { return {worker, inc}; }
  };
  [[nodiscard]] std::string HostOf(WorkerId worker) const {
    return options_.hosts > 1 ? std::to_string(worker.value % options_.hosts) : "";
  }
  static DeviceKey KeyOf(const Device& d) { return {d.proc->id, d.slot}; }
  struct Step {  // a collective: nobody finishes before all have come
    std::set<DeviceKey> devices;
    bool broken = false;
    uint64_t weights = 0;
    int64_t life = 0;  // of the controller: a lease number that was never durable is given again
  };
  using Action = std::function<void()>;
  struct Entry {
    TimePoint at;
    int64_t seq;
    Action action;
    bool operator<(const Entry& o) const { return std::tie(o.at, o.seq) < std::tie(at, seq); }
  };

  void At(Duration delay, Action action);
  void StartController();
  void Deliver(const Event& event);
  void Execute(const Command& command);
  void Out(Proc& proc, Event event, double delay_s = 0);  // from a process, in its order
  void Out(Device& device, Event event, double delay_s = 0) { Out(*device.proc, std::move(event), delay_s); }
  void Storage(Event event, double delay_s);  // of this life of the controller
  Proc* Find(const WorkerRef& ref);
  Proc* Find(int64_t id);
  // Of a process that lives and does not hang; null: there is none.
  Device* Find(const SlotRef& ref);
  Device* Find(const DeviceKey& key);
  void Spawn(WorkerId worker);
  void Die(Proc& proc, bool seen);
  void AfterController();  // it died: workers end or wait
  void Restart() {
    AfterController(), At(FromSeconds(0.5), [this] { StartController(); });
  }
  void DiskFailed(const Status& why);  // the machine went down, or the controller could not write
  void Tick();
  void DealFaults();
  void Beat(int64_t proc);
  void EngineStep(const DeviceKey& device);
  std::vector<Device*> GangOf(SlotId first);  // those that live; empty: it is no gang
  bool Together(Device& first);
  bool AllTrained(const command::Load& c);  // the slots of its gang have these weights, as far as they joined
  void FinishDrain(Device& device);
  void Offer(int64_t proc);       // to a new controller: what it holds
  void SendHeld(Device& device);  // its process was welcomed again: tokens from the first on, and ends
  void SendTokens(Device& device, const Chunk& chunk, const Tokens& after, int64_t count, const Version& v);
  void SendEnd(Device& device, const Chunk& chunk);
  void EndStep(const DeviceKey& device, const command::Train& train, uint64_t weights, double seconds);
  void LeaveStep(Device& device);
  void Fault(double mean_s, const char* name, const std::function<void()>& what);
  bool Chance(double p) {
    const bool hit = p > 0 && now_ < FromSeconds(options_.faults.heal_after_s) && rng_faults_.Chance(p);
    result_.faults += hit ? 1 : 0;
    return hit;
  }
  [[nodiscard]] int64_t LengthOf(const SampleId& tid) const;
  // Episodes: tokens that the policy says in a turn, turns of the episode, tokens of an observation.
  [[nodiscard]] int64_t TurnLength(const SampleId& tid, int64_t turn) const;
  [[nodiscard]] int64_t TurnsOf(const SampleId& tid) const;
  [[nodiscard]] int64_t ObservationOf(const SampleId& tid, int64_t turn) const;
  [[nodiscard]] double RewardOf(const SampleId& tid, uint64_t content) const;
  double Delay(double mean_s);

  struct Do;
  SimOptions options_;
  Rng rng_delays_, rng_faults_;
  std::priority_queue<Entry> queue_;
  int64_t seq_ = 0;
  struct Clock {
    TimePoint t;
    friend bool operator<(const Clock& c, Duration d) { return c.t.since_start < d; }
  } now_;
  std::unique_ptr<Controller> controller_;
  int64_t life_ = 0;
  bool expected_ = true;  // the last tokens that were delivered were wanted
  bool crash_ = false, crash_now_ = false, over_ = false;
  SimResult result_;
  std::vector<JournalEntry> journal_;
  size_t durable_ = 0, fed_ = 0;
  Checker checker_;
  std::map<int64_t, Proc> procs_;
  int64_t next_proc_ = 0, started_workers_ = 0;
  std::map<std::pair<SampleId, int32_t>, Tokens> tokens_;  // the controller process's memory
  std::map<SampleId, Tokens> payload_;                     // on disk
  struct Checkpoint {
    StepNumber step;
    uint64_t weights = 0;
    bool rotten = false;
  };
  std::map<int64_t, Checkpoint> checkpoints_;
  std::vector<command::KeepBest> kept_best_;
  std::map<StepNumber, uint64_t> recovery_;  // shared memory: survives a worker
  std::map<int64_t, Step> steps_;            // by lease
  int64_t asks_ = 0;
  int64_t broken_tries_ = 0;                     // of breaks_at_step
  std::map<DeviceKey, command::Train> waiting_;  // the step that a device is inside of
  record::Lease lease_;                          // the newest
  std::map<Version, uint64_t> published_;        // bytes by version, at the trainer
  std::set<Version> copied_;                     // those that others can read
  std::vector<std::string> warnings_;
  std::vector<command::StepReport> reports_;
  std::vector<command::EvalReport> evals_;
};

// A small job: groups of `group_size` on `slots` slots.
ControllerOptions SmallJob(PlacementKind placement = PlacementKind::kColocated, int64_t slots = 1);

// The same with episodes of several turns on `workers` environment workers.
ControllerOptions SmallEpisodes(PlacementKind placement = PlacementKind::kColocated, int64_t slots = 1,
                                int64_t workers = 2);

uint64_t HashJournal(const std::vector<JournalEntry>& journal);

}  // namespace tidepool::scheduler
