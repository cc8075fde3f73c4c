#pragma once
// Episodes that programs outside play (rollout.endpoint), as an environment worker sees them. The worker is
// told of turns and says what came of them; how programs are reached is in workers/serve/agent_endpoint.h,
// above this folder.

#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct AgentTurn {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;  // as down::EnvStep
  TokenRecord action;
};

// Thread-safe.
class AgentSessions {
 public:
  virtual ~AgentSessions() = default;  // nothing is said any more once it returns
  // Of each turn something is said, once, when its program goes on, or is given up; not after End.
  virtual void Play(AgentTurn turn) = 0;
  // Nobody wants the attempt any more; of its turn, if one waits, nothing is said.
  virtual void End(const SampleId& tid, int32_t att) = 0;
  virtual void Tick() = 0;  // ends what is over its time; a few times a second
};

struct AgentSessionsOptions {
  JobConfig config;
  std::string run_dir, model_dir;
  std::function<void(up::EnvStepped)> say;  // of any thread; be quick
};
using OpenAgentSessions =
    std::function<StatusOr<std::unique_ptr<AgentSessions>>(const AgentSessionsOptions& options)>;

}  // namespace tidepool::workers
