#pragma once
// What a device does in the actor role: one interface, and trainers behind it. TextActor
// (workers/device/text_actor.h) trains a language model with core/train, PolicyActor and SacActor
// (workers/device/policy_actor.h) policies of control tasks with core/policy. Steps, state and digests are
// the same to everybody else, as rollouts are (workers/device/rollout.h).
//
// Owned by the device thread, except State, which a checkpoint may read on another thread while no step runs.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/model/memory_use.h"
#include "core/train/trainer.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// Called between parts of a step with what is done of it; false: stop.
struct TrainProgress {
  std::function<bool(const std::string& op)> trains;
  std::function<bool(const std::string& op)> evaluates;  // held-out rows; false: the step goes on without
};

class Actor {
 public:
  virtual ~Actor() = default;
  // Rows are those of all ranks; of the others' there are outlines.
  // kInvalidArgument: the rows cannot be trained on (data), nothing changed; `bad`: as of
  // train::Trainer::Step. kAborted: `progress.trains` returned false. kUnavailable: the evaluation before
  // training was not waited for, nothing changed.
  virtual StatusOr<train::StepResult> Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                           const TrainProgress& progress, const comm::RankGroups& groups,
                                           std::vector<BadRow>& bad) = 0;
  // As those of train::Trainer; `rows` as of Step, of one group.
  virtual Status Preview(std::vector<BatchRow>, const Version&) { return OkStatus(); }
  [[nodiscard]] virtual bool HasPreview() const { return false; }
  virtual StatusOr<train::Scored> PreviewPiece() { return train::Scored(); }
  // Live bytes of what a checkpoint stores; the part "weights" is the arena.
  virtual std::vector<train::NamedBytes> State() = 0;
  virtual void WeightsChanged() {}  // that bytes of weights were written from outside, State's too
  // Of the state; `weights`: the digest of its weights.
  [[nodiscard]] virtual uint64_t Digest(uint64_t weights) const = 0;
  // How often the state has ever changed: optimizer updates, and what came into a replay store.
  [[nodiscard]] virtual int64_t updates() const = 0;
  virtual void ReleaseScratch() {}  // gradients, activations, logits
  [[nodiscard]] virtual model::MemoryUse held() const { return {}; }
  [[nodiscard]] virtual int64_t further_bytes() const { return 0; }  // reference, teacher, critic
};

}  // namespace tidepool::workers
