#pragma once
// What a device can do, apart from how it is told: weights, engine and trainer of one worker.
//
// Both roles share one Weights arena: a colocated worker hands new weights from the trainer to the
// engine by bumping the version, no byte moves. A trainer that needs further models (a frozen reference or
// teacher, a critic) gets them when it is made; a worker that only generates never loads them. Owned by the
// device thread, except WriteCheckpoint, which may run on another thread while no optimizer step does.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/engine/engine.h"
#include "core/engine/follower.h"
#include "core/engine/ranks.h"
#include "core/model/weights.h"
#include "core/policy/spec.h"
#include "core/train/shared_weights.h"
#include "workers/data/host_weights.h"
#include "workers/data/shared_arena.h"
#include "workers/device/actor.h"
#include "workers/device/device_pool.h"
#include "workers/device/model_reader.h"
#include "workers/device/rollout.h"
#include "workers/device/shared_engine.h"
#include "workers/device/state_files.h"
#include "workers/net/certificates.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class TokenRollout;

struct TrainOutcome {
  bool finite = true;
  uint64_t weights_digest = 0;
  std::vector<std::pair<std::string, double>> metrics;
  train::Scored scored;
  uint64_t replay = 0;
};

class DeviceRoles {
 public:
  // `shared_memory`: SharedBlock::FolderOf the run. `offload_dir`: where Park writes, this object's alone.
  // `trains`: whether it may ever hold the actor's role. `base_digest`: ModelReader's. `pool`: whose sessions
  // share the model below adapters with this one; null: it is alone.
  DeviceRoles(JobConfig config, std::string model_dir, const std::string& shared_memory,
              std::string offload_dir, DeviceMaker make_device = MakeCpuDevice, bool trains = true,
              std::string base_digest = "", DevicePool* pool = nullptr);
  ~DeviceRoles();
  // What the engine has of adapters on the model, beside it: folders (TokenRollout::AddAdapter), in their
  // order. Before there is one; requires a model, whole
  void ServeAdapters(std::vector<std::string> folders) { served_adapters_ = std::move(folders); }

  // The model below an adapter, without which nothing works; nothing elsewhere. Errors of ModelReader::Base.
  Status FindBase();
  // Weights of the start: read from the model folder, or made from its config with the job's seed.
  // `shard`: what of the optimizer's state is here from then on.
  Status InitState(const Shard& shard = {});
  // Trainer and weights from a checkpoint folder, or from the recovery copy of `step`.
  Status RestoreFromCheckpoint(const std::string& dir, StepNumber step, const Shard& shard = {});
  Status RestoreFromRecovery(StepNumber step);
  // From the worker at `address`, which holds the state of `step`. kDataLoss: not the bytes that it has.
  Status FetchState(const std::string& address, const Credentials& credentials, StepNumber step);
  // The live bytes of the state, for others to fetch: valid until the next optimizer step begins.
  StatusOr<std::vector<device::ByteSource>> StateParts();
  static uint64_t StateDigest(std::span<const device::ByteSource> parts);
  [[nodiscard]] StatusOr<uint64_t> WeightsDigest() const;

  // Rollout.
  // Makes or re-allocates the engine. `ranks`: that are one engine with this one, the same until DropEngine;
  // null: it is alone.
  Status PrepareRollout(engine::Ranks* ranks = nullptr);
  [[nodiscard]] Rollout* rollout() { return rollout_.get(); }
  // Null: this is no engine's rank, or its first, which has the rollout.
  [[nodiscard]] engine::Follower* follower() { return follower_.get(); }
  void DropEngine();
  // What the arena holds, once its bytes were verified against the digest of those who published them.
  // Nothing while a load is under way, after one that failed, and before the first: the engine then serves
  // nothing.
  struct LoadedVersion {
    Version version;
    uint64_t digest = 0;
  };
  [[nodiscard]] std::optional<LoadedVersion> loaded() const;
  // The step whose state of training is whole here, and the digest of its weights. Nothing while the state is
  // replaced, after a load of weights alone, and after a step that failed half-way.
  struct TrainedState {
    StepNumber step;
    uint64_t digest = 0;
  };
  [[nodiscard]] std::optional<TrainedState> state() const;
  [[nodiscard]] const Shard& shard() const { return shard_; }

  // Memory. A released role gives back what it does not need to go on later: KV cache and scratch; gradients,
  // activations and logits. Weights and the optimizer's state stay. kNone: both give it back.
  void Release(Role role);
  // The trainer goes, with all that it holds beside the weights; its state goes to files and comes back when
  // it is next used, kDataLoss (no state is here then) where a file is not what was written. Errors of
  // ParkedState::Write: the trainer stays.
  Status Park();
  [[nodiscard]] bool parked() const { return parked_.holds(); }
  [[nodiscard]] int64_t parked_bytes() const { return parked_.bytes(); }
  [[nodiscard]] model::MemoryUse held() const;
  [[nodiscard]] model::MemoryUse held(Role role) const;  // of a role, without the weights that both share
  // Of weights that every rank has for itself until the next step, which puts them together first.
  [[nodiscard]] int64_t unshared_bytes() const {
    return shared_ == nullptr || shard_.world <= 1 ? 0 : shared_->own_bytes();
  }
  [[nodiscard]] int64_t further_bytes() const { return actor_ == nullptr ? 0 : actor_->further_bytes(); }
  // New weights for an engine whose trainer is elsewhere: fills the arena, returns the digest of what came.
  StatusOr<uint64_t> LoadFromSharedMemory(Version version);  // the host's copy, HostWeights::Read
  // The same; where shared memory has them not, from `address` into a copy of this process first.
  // `digest`: the published one
  StatusOr<uint64_t> LoadFromStream(Version version, uint64_t digest, const std::string& address,
                                    const Credentials& credentials);
  void UseVersion(Version version);  // the arena now holds `version`
  [[nodiscard]] int64_t weight_bytes() const;
  [[nodiscard]] int64_t arena_bytes() const { return weights_ == nullptr ? 0 : weights_->size(); }
  // Of new weights, those that this slot's engine needs and its trainer does not make; 0 where it has none.
  [[nodiscard]] int64_t least_moved_bytes() const;

  // Training, as Actor::Step says. With a group any error makes the group useless.
  StatusOr<TrainOutcome> Train(StepNumber step, Version version, std::vector<BatchRow> rows,
                               const TrainProgress& progress, const comm::RankGroups& groups,
                               std::vector<BadRow>& bad);
  // As Actor's; nothing where no trainer is in memory.
  Status Preview(std::vector<BatchRow> rows, const Version& version);
  [[nodiscard]] bool HasPreview() const { return actor_ != nullptr && actor_->HasPreview(); }
  StatusOr<train::Scored> PreviewPiece();  // requires HasPreview()
  // Optimizer updates ever made: tells whether a step that failed changed anything. 0 while it is parked.
  [[nodiscard]] int64_t updates() const { return actor_ == nullptr ? 0 : actor_->updates(); }
  // `shared`: as HostWeights::Publish.
  Status Publish(Version version, uint64_t digest, bool shared);
  [[nodiscard]] const std::shared_ptr<HostWeights>& host_weights() const { return published_; }
  Status CopyRecovery(StepNumber step);
  Status PrepareCheckpoint();  // before WriteCheckpoint, on the device thread
  // Writes model/, unless it is there with its weights, and trainer files under `dir`, which exists; returns
  // their paths relative to it. part: only what no other rank has.
  StatusOr<std::vector<std::string>> WriteCheckpoint(const std::string& dir, bool part = false) const;
  Status SaveModel(const std::string& dir) const;

 private:
  Status MakeWeights(bool read_tensors);
  [[nodiscard]] int64_t base_bytes() const;  // requires base_
  StatusOr<engine::EngineOptions> OptionsOfEngine();
  Status AddAdapters(EngineSeat& seat) const;
  // At an engine of its own, or at the pool's over the model below.
  StatusOr<std::unique_ptr<EngineSeat>> TakeSeat(engine::EngineOptions options);
  StatusOr<uint64_t> LoadPart(Version version);
  // Another shard needs another trainer; its state is that of nothing then.
  void TakeShard(const Shard& shard);
  Status MakeActor();  // where there is none; with the state that is parked
  // From now until Whole() the arena holds no version, and no state; what is parked is forgotten.
  void Tear();
  // The arena was written: what it holds is `want`, or kDataLoss.
  Status Whole(uint64_t want, const std::string& what);
  // Where nothing but the engine reads the arena: lays it out for its products.
  void LayOut();
  // The arena and the trainer hold the state of `step`.
  void OwnState(StepNumber step);

  JobConfig config_;
  ModelReader models_;
  DevicePool* const pool_;
  const std::string shared_memory_;               // its folder
  std::unique_ptr<train::SharedWeights> shared_;  // where weights_ stand (train.zero: 3); null: in their own
  std::shared_ptr<const model::Weights> base_;    // that weights_ are an adapter on (model.lora); null: none
  std::unique_ptr<model::Weights> weights_;
  std::optional<policy::PolicySpec> policy_;  // model.policy: weights_ are such a policy's
  const bool trains_;
  std::vector<std::string> served_adapters_;
  std::shared_ptr<device::Device> engine_device_;  // null until there is an engine
  engine::Ranks* ranks_ = nullptr;
  std::unique_ptr<Rollout> rollout_;
  std::unique_ptr<engine::Follower> follower_;
  std::unique_ptr<Actor> actor_;
  const std::shared_ptr<HostWeights> published_;
  SharedBlock recovery_;
  ParkedState parked_;
  Version version_;
  bool torn_ = true;         // weights_ are being written, or were not written whole
  bool serves_ = false;      // weights_ are those of version_
  bool owns_state_ = false;  // weights, master and moments are those of state_step_
  StepNumber state_step_;
  Shard shard_;
  uint64_t digest_ = 0;  // of weights_ as they are
};

}  // namespace tidepool::workers
