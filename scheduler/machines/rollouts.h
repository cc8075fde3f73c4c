#pragma once
// Rollout engines: which weights each of them serves, which samples it generates, how full it is kept.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/dispatcher.h"
#include "scheduler/events.h"
#include "scheduler/fleet/weight_roll.h"
#include "scheduler/kv_admission.h"
#include "scheduler/machines/machine.h"
#include "scheduler/repack.h"

namespace tidepool::scheduler {

class Rollouts : public Machine {
 public:
  explicit Rollouts(Machines& all);

  void On(const event::ChunkProgress& e);
  void On(const event::ChunkFinished& e);
  void On(const event::Pulled& e);
  void On(const event::Loaded& e);
  void Heard(const event::Heartbeat& e);  // what the engine says about itself

  void RollWeights();  // loads the newest weights where they may be loaded
  [[nodiscard]] bool NeedsCopy() const { return weights_.NeedsCopy(); }
  void Dispatch();  // sends chunks
  void Tick();      // slow engines get less; pinned samples are moved together

  // Requests: samples of which tokens are to be generated.
  void Add(const Request& r) { dispatcher_.Add(r); }
  void WaitEnv(const SampleId& tid) { dispatcher_.WaitEnv(tid); }
  void Resume(const SampleId& tid, int64_t observation_tokens);
  // Nothing more is wanted of it; a chunk in flight is cancelled. Returns its attempt; nothing: unknown.
  std::optional<int32_t> Withdraw(const SampleId& tid);
  void Complete(const Request& r);  // it ended by itself: its length is learnt, then as Remove
  void Remove(const Request& r);    // its chunk is over
  void ForgetGroup(GroupId gid);    // no request of the group is left
  void ForgetIfDone(GroupId gid);   // the same, if it is so
  // Groups to be generated first, and groups to leave alone.
  void SetUrgent(const std::set<GroupId>& urgent, const std::set<GroupId>& too_late) {
    dispatcher_.SetUrgent(urgent, too_late);
  }

  // Engines.
  void Offered(const event::OfferedSlot& offered);  // a worker of the last life is back, with these weights
  void Adopt(SlotId slot, const std::vector<event::OfferedChunk>& chunks);  // and with those that are its own
  void ServeAgain(SlotId slot);  // it holds the rollout role from now on
  // It gets no new chunks.
  void SlotIsTaken(SlotId slot) { dispatcher_.SetBar(slot, Engine::Bar::kSlot, true); }
  // The worker became suspect, or is it no more: whether engines that it is a part of get new chunks.
  void JudgeEngines(WorkerId worker);
  // Its samples go on elsewhere, if some other engine can take them.
  void Hedge(WorkerId worker);
  // It died. Returns samples that two deaths are blamed on.
  std::vector<SampleId> Blame(WorkerId worker) { return dispatcher_.Blame(worker); }
  // It generates no more, and its samples wait until its workers are replaced.
  void EngineLost(SlotId slot) { dispatcher_.SetBar(slot, Engine::Bar::kBroken, true); }
  void Drained(SlotId slot);   // it generates no more
  void Lost(WorkerId worker);  // and the memory of all its slots is gone
  // Of the weights in its memory nothing is known: its worker is new, or its trainer writes them.
  void Forget(SlotId slot) { weights_.Holds(slot, {}); }

  [[nodiscard]] const Dispatcher& requests() const { return dispatcher_; }
  [[nodiscard]] bool Serves(const Version& v) const;  // some engine does
  [[nodiscard]] double token_s() const { return token_s_; }

 private:
  [[nodiscard]] WeightRoll::Conditions RollConditions();
  [[nodiscard]] bool Holds(SlotId slot);
  // What is said of a load or pull that is over, and done about its worker.
  void Tell(WeightRoll::Outcome outcome, const WorkerRef& worker, const char* doing, const Version& v,
            const std::string& error);
  void AdmitVerified(SlotId slot, const Version& v);
  void AdoptChunk(const event::OfferedChunk& chunk);
  [[nodiscard]] Version Verified(const event::OfferedSlot& offered) const;
  void JudgeEngine(SlotId slot);
  void HedgeSlot(SlotId slot);
  [[nodiscard]] bool TooEarly();
  [[nodiscard]] int64_t ComingEngines() const;
  void Heard(const event::EngineSample& engine);
  void DropOrphans();
  void DropPinnedOn(SlotId slot);
  void UnitDone(int64_t tokens);
  void WeighEngines();
  void Repack();
  [[nodiscard]] bool Worthwhile(const std::vector<Move>& moves,
                                const std::vector<RepackEngine>& engines) const;

  static constexpr double kCancelSeconds = 2;  // for a cancelled chunk to be acknowledged before a load
  // A worker that pulls gives up when nothing came for half a minute, and says each second what has come.
  static constexpr double kPullSilentSeconds = 60;

  Dispatcher dispatcher_;
  WeightRoll weights_;
  std::map<SlotId, TimePoint> ghosts_until_;  // cancelled chunks to be acknowledged before a load
  std::optional<KvAdmission> kv_;             // rollout.admission: adaptive
  double token_s_ = 0;                        // smoothed seconds of an engine step
  Version repacked_version_;
  TimePoint repacked_at_;
};

}  // namespace tidepool::scheduler
