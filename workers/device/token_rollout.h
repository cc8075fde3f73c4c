#pragma once
// The rollout role of a language model: chunks to core/engine, its deltas to the wire.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/engine/engine.h"
#include "workers/device/rollout.h"
#include "workers/device/shared_engine.h"

namespace tidepool::workers {

class TokenRollout : public Rollout {
 public:
  // routing_bytes: of a row, where the engine records which experts it took; 0: nothing is recorded.
  // turns: what it generates are turns of episodes, whose KV is wanted again after the environment's.
  // load_bytes: what the engine needs for stop strings, for the first request that brings some where the
  // config has none; null: the engine has it.
  using LoadBytes = std::function<StatusOr<engine::TokenBytes>()>;
  TokenRollout(const RolloutConfig& config, bool turns, int64_t routing_bytes,
               std::unique_ptr<EngineSeat> engine, LoadBytes load_bytes)
      : config_(config),
        turns_(turns),
        routing_bytes_(routing_bytes),
        engine_(std::move(engine)),
        load_bytes_(std::move(load_bytes)) {}
  Status Add(down::StartChunk chunk) override;
  bool Cancel(const SampleId& tid, int32_t att) override { return engine_->Cancel(tid, att); }
  void ForgetGroup(GroupId gid) override { engine_->ForgetGroup(gid); }
  std::vector<std::pair<SampleId, int32_t>> Drain() override;
  [[nodiscard]] bool HasWork() const override { return engine_->HasWork(); }
  RolloutStep Step() override;
  void UseVersion(const Version& version) override;
  Status AcquireMemory() override { return engine_->AcquireMemory(); }
  void ReleaseMemory() override { engine_->ReleaseMemory(); }
  [[nodiscard]] model::MemoryUse held() const override { return engine_->held(); }

 private:
  [[nodiscard]] engine::SamplingParams ConfiguredParams(bool greedy) const;

  const RolloutConfig config_;
  const bool turns_;
  const int64_t routing_bytes_;
  const std::unique_ptr<EngineSeat> engine_;
  LoadBytes load_bytes_;
};

}  // namespace tidepool::workers
