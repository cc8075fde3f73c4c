#pragma once
// The rollout role of a language model: chunks to core/engine, its deltas to the wire.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"
#include "workers/device/rollout.h"

namespace tidepool::workers {

class TokenRollout : public Rollout {
 public:
  // routing_bytes: of a row, where the engine records which experts it took; 0: nothing is recorded.
  // turns: what it generates are turns of episodes, whose KV is wanted again after the environment's.
  // load_bytes: what the engine needs for stop strings, for the first request that brings some where the
  // config has none; null: the engine has it.
  using LoadBytes = std::function<StatusOr<engine::TokenBytes>()>;
  // seed: of the noise.
  TokenRollout(const RolloutConfig& config, uint64_t seed, bool turns, int64_t routing_bytes,
               std::unique_ptr<engine::Engine> engine, LoadBytes load_bytes)
      : config_(config),
        seed_(seed),
        turns_(turns),
        routing_bytes_(routing_bytes),
        engine_(std::move(engine)),
        load_bytes_(std::move(load_bytes)) {}
  // On the engine's model: chunks name it by its number, from 0 on, and have attempts of their own.
  void AddAdapter(std::unique_ptr<model::Weights> adapter, const Version& version);
  Status Add(down::StartChunk chunk) override;
  bool Cancel(const SampleId& tid, int32_t att) override;
  void ForgetGroup(GroupId gid) override;
  std::vector<std::pair<SampleId, int32_t>> Drain() override;
  [[nodiscard]] bool HasWork() const override { return engine_->HasWork(); }
  RolloutStep Step() override;
  void UseVersion(const Version& version) override;
  Status AcquireMemory() override { return engine_->AcquireMemory(); }
  void ReleaseMemory() override { (void)engine_->ReleaseMemory(); }
  [[nodiscard]] model::MemoryUse held() const override { return engine_->held(); }

 private:
  [[nodiscard]] engine::SamplingParams ConfiguredParams(bool greedy) const;

  [[nodiscard]] int32_t adapters() const { return static_cast<int32_t>(adapters_.size()); }

  const RolloutConfig config_;
  const uint64_t seed_;
  const bool turns_;
  const int64_t routing_bytes_;
  std::vector<std::unique_ptr<model::Weights>> adapters_;
  std::unique_ptr<engine::Engine> engine_;  // reads them
  LoadBytes load_bytes_;
};

}  // namespace tidepool::workers
