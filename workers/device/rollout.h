#pragma once
// What a device does in the rollout role: one interface, two engines behind it. TokenRollout generates text
// with core/engine, PolicyRollout (workers/device/policy_rollout.h) plays fragments of control tasks. Chunks,
// versions, drains and tokens are the same to everybody else: the scheduler, the journal and the trainer do
// not know which it is.
//
// Owned by the device thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/model/memory_use.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct RolloutStep {
  up::StepTokens tokens;
  int64_t sampled = 0;  // tokens (environment steps) that it made
};

class Rollout {
 public:
  virtual ~Rollout() = default;
  // kAlreadyExists: it is in work; kInvalidArgument: the sample itself is wrong; others: try it elsewhere.
  virtual Status Add(down::StartChunk chunk) = 0;
  virtual bool Cancel(const SampleId& tid, int32_t att) = 0;  // false: it is over, or was never here
  virtual void ForgetGroup(GroupId gid) = 0;
  // Ends all chunks; what was reported of them stands.
  virtual std::vector<std::pair<SampleId, int32_t>> Drain() = 0;
  [[nodiscard]] virtual bool HasWork() const = 0;
  // requires HasWork()
  virtual RolloutStep Step() = 0;
  // The weights in the arena are those of `version` from now on.
  virtual void UseVersion(const Version& version) = 0;
  virtual Status AcquireMemory() = 0;
  virtual void ReleaseMemory() = 0;
  [[nodiscard]] virtual model::MemoryUse held() const = 0;  // kv and workspace, at present
};

}  // namespace tidepool::workers
