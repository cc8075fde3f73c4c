#pragma once
// The workers of the run and their slots: one record for each worker (who it is, which slots it has, how it
// lives) and one for each slot (which weights are in its memory, what it generates, which training state it
// has). Everyone may read all of a record; each part of it is changed by one class, which is its friend. What
// a gang of slots does stands in the record of its first slot. Not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/base/words.h"
#include "scheduler/events.h"
#include "scheduler/flat_table.h"
#include "scheduler/id_map.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {

enum class Life : uint8_t { kAbsent, kStarting, kStale, kHealthy, kSuspect, kRestarting, kRetired };
constexpr auto WordsOf(Life) {
  return std::to_array<const char*>(
      {"absent", "starting", "stale", "healthy", "suspect", "restarting", "retired"});
}

// How a worker lives: Health's part.
struct Vitals {
  Life life = Life::kAbsent;
  TimePoint heard, progress, born, starting_since;
  int64_t op_seq = 0;
  std::string op;
  bool busy = false;               // has work whose progress is expected
  int64_t streak = 0;              // restarts without 5 min of health between
  int64_t failed_starts = 0;       // in a row, before it joined
  std::deque<TimePoint> restarts;  // of the last 10 min
  std::string last_why;
};

// The weights in a slot's memory: WeightRoll's part. Which of them its engine serves is Engine::version.
struct Weights {
  Version verified;  // their digest was compared with that of their PUBLISH in this life; invalid: torn
  Version newest;    // of those that were verified here: an engine goes back to none before
  Version loading;   // valid: a Load is under way
  uint64_t loading_digest = 0;
  int64_t tries = 0;
  bool disturbs = false;  // samples in it wait for this load
  bool follows = false;   // it has an engine, which is to get the newest weights
};

// How fast the engine of a slot is, by what its heartbeats say: Health's part.
struct Pace {
  double step_s = 0;  // its steps, smoothed
  double relative =
      0;  // its steps without prefill over what is usual for their batch, smoothed; 0: not known
};

// What a slot generates: the Dispatcher's part.
struct Engine {
  // Why an engine takes no new chunks. Each has one owner, and nobody opens or closes an engine as such.
  enum class Bar : uint8_t {
    kSlot = 1,     // its slot does not hold the rollout role, or is being taken from it
    kLoading = 2,  // its weights are being replaced, or nobody has verified what is there; until Admit
    kSuspect = 4,  // it is silent, or its work does not move
    kEmptied = 8,  // its samples are moved away so that it can load; until Admit
    kBroken = 16,  // its slots have lost each other; for the rest of its life
  };
  SlotEpoch epoch;
  Version version;       // admitted
  uint8_t barred = 0;    // a set of Bar
  int64_t slowness = 1;  // its steps, over the median of all
  int64_t reserved = 0;
  SampleId suspect;                                            // the last one that it was given
  SmallSet<GroupId> groups;                                    // whose KV may be there
  bool load_changed = false;                                   // since the last SettleLoads
  FlatTable<std::pair<SampleId, int32_t>, int64_t> in_flight;  // (tid, att) -> reserved KV tokens
  [[nodiscard]] bool broken() const { return (barred & static_cast<uint8_t>(Bar::kBroken)) != 0; }
  [[nodiscard]] bool open() const { return version.valid() && barred == 0; }  // takes new chunks
  [[nodiscard]] int64_t load() const { return static_cast<int64_t>(in_flight.size()) * slowness; }
};

// A copy of the trainer's state in a slot's memory: TrainerState's part. Step invalid: none.
struct StateCopy {
  StepNumber step;
  uint64_t digest = 0;
};

class Worker {
 public:
  [[nodiscard]] WorkerKind kind() const { return kind_; }
  [[nodiscard]] const std::vector<SlotId>& slots() const { return slots_; }  // none: no device worker
  [[nodiscard]] const WorkerRef& ref() const { return ref_; }  // of the live process; inc invalid if none
  [[nodiscard]] bool live() const { return ref_.inc.valid(); }
  // It lived under the last controller and may still come back.
  [[nodiscard]] bool reattaches() const { return reattaches_; }
  [[nodiscard]] const Vitals& vitals() const { return vitals_; }
  [[nodiscard]] const std::string& host() const { return host_; }  // of the newest process

 private:
  friend class Health;
  friend class Workers;
  friend struct Fleet;
  WorkerKind kind_ = WorkerKind::kDevice;
  std::vector<SlotId> slots_;
  WorkerRef ref_;  // Health's
  bool reattaches_ = false;
  std::string host_;
  int64_t host_number_ = 0;  // Fleet::HostNumber
  Vitals vitals_;
};

class Device {
 public:
  explicit Device(WorkerId worker) : worker_(worker) {}
  [[nodiscard]] WorkerId worker() const { return worker_; }  // that has it
  [[nodiscard]] const Pace& pace() const { return pace_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const Engine* engine() const { return engine_ ? &*engine_ : nullptr; }
  [[nodiscard]] const StateCopy& copy() const { return copy_; }
  // The slots that hold its role together, itself among them; the first has their engine.
  [[nodiscard]] const std::vector<SlotId>& gang() const { return gang_; }

 private:
  friend struct Fleet;
  friend class Health;
  friend class WeightRoll;
  friend class Dispatcher;
  friend class TrainerState;
  WorkerId worker_;
  Pace pace_;
  Weights weights_;
  std::optional<Engine> engine_;
  StateCopy copy_;
  std::vector<SlotId> gang_;  // Fleet's
};

struct Fleet {
  IdMap<WorkerId, Worker> workers;
  IdMap<SlotId, Device> devices;

  // A worker that is to be; `slots`: of a device worker.
  void Add(WorkerId id, WorkerKind kind, const std::vector<SlotId>& slots) {
    Worker& w = workers[id];
    w.kind_ = kind;
    w.slots_ = slots;
    for (const SlotId slot : slots) {
      devices.Insert(slot, Device(id));
      devices.at(slot).gang_ = {slot};
    }
  }
  // These hold a role together. requires slots that were added
  void Bind(const std::vector<SlotId>& gang) {
    for (const SlotId slot : gang) devices.at(slot).gang_ = gang;
  }
  // Slots whose engines end with that worker: it has them, or other slots of their gangs.
  [[nodiscard]] std::set<SlotId> EnginesOf(WorkerId worker) const {
    std::set<SlotId> engines;
    for (const SlotId slot : workers.at(worker).slots()) engines.insert(devices.at(slot).gang().front());
    return engines;
  }
  // Workers without any of which that slot's engine ends.
  [[nodiscard]] std::set<WorkerId> WorkersOf(SlotId slot) const {
    std::set<WorkerId> of;
    for (const SlotId part : devices.at(slot).gang()) of.insert(devices.at(part).worker());
    return of;
  }
  // Where its process runs.
  void Place(WorkerId id, std::string host) {
    Worker& w = workers.at(id);
    w.host_number_ = hosts.try_emplace(host, static_cast<int64_t>(hosts.size())).first->second;
    w.host_ = std::move(host);
  }
  [[nodiscard]] const std::string& HostOf(SlotId slot) const {
    static const std::string kNowhere;
    const Device* d = devices.Find(slot);
    return d == nullptr ? kNowhere : workers.at(d->worker()).host();
  }
  // Hosts that were named so far, as numbers from 0 on: equal where their names are.
  std::map<std::string, int64_t> hosts{{"", 0}};
  [[nodiscard]] int64_t HostNumber(SlotId slot) const {
    const Device* d = devices.Find(slot);
    return d == nullptr ? 0 : workers.at(d->worker()).host_number_;
  }
  // Under the live process of its worker; inc invalid: there is none.
  [[nodiscard]] SlotRef Ref(SlotId slot) const { return {workers.at(devices.at(slot).worker()).ref(), slot}; }
  // The live process of a worker is `ref`.
  [[nodiscard]] bool IsLive(const WorkerRef& ref) const {
    const Worker* w = workers.Find(ref.worker);
    return w != nullptr && w->live() && w->ref() == ref;
  }
  // And the slot is one of its own.
  [[nodiscard]] bool IsLive(const SlotRef& ref) const {
    const Device* d = devices.Find(ref.slot);
    return d != nullptr && d->worker() == ref.worker.worker && IsLive(ref.worker);
  }
};

}  // namespace tidepool::scheduler
