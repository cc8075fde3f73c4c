#pragma once
// The rollout role of a policy of control tasks: plays fragments in environments that environment workers
// host.
//
// A chunk is a whole fragment (or an evaluation's episode). It is reported once, when it is complete: one
// that is drained, or whose environments are lost, has made nothing and is played again from its start
// states.

#include <map>
#include <memory>
#include <string>

#include "core/base/config.h"
#include "core/model/weights.h"
#include "core/policy/player.h"
#include "workers/device/rollout.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {

class PolicyRollout : public Rollout {
 public:
  // `weights` outlives this. Errors of the job's environment.
  static StatusOr<std::unique_ptr<PolicyRollout>> Create(const JobConfig& config,
                                                         const policy::PolicySpec& spec,
                                                         const model::Weights& weights);

  Status Add(down::StartChunk chunk) override;
  bool Cancel(const SampleId& tid, int32_t att) override;
  void ForgetGroup(GroupId) override {}
  std::vector<std::pair<SampleId, int32_t>> Drain() override;
  [[nodiscard]] bool HasWork() const override;
  RolloutStep Step() override;
  void UseVersion(const Version& version) override;
  Status AcquireMemory() override { return OkStatus(); }
  void ReleaseMemory() override {}
  [[nodiscard]] model::MemoryUse held() const override { return {}; }

 private:
  // One environment worker's share: fragments at different workers are played in turn.
  struct Site {
    std::unique_ptr<RemoteHost> host;
    std::unique_ptr<policy::Player> player;
  };
  PolicyRollout(const JobConfig& config, const policy::PolicySpec& spec, const model::Weights& weights)
      : config_(config), spec_(spec), weights_(weights) {}

  const JobConfig config_;
  const policy::PolicySpec spec_;
  const model::Weights& weights_;
  int64_t episode_steps_ = 0;  // limit of an evaluation's episode
  std::string late_;           // what is said of environments that do not answer: the task is what hangs
  Version version_;
  std::map<std::string, Site> sites_;                            // by address
  std::map<std::pair<SampleId, int32_t>, int64_t> chunk_steps_;  // what was asked for
};

}  // namespace tidepool::workers
