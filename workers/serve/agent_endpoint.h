#pragma once
// The endpoint of a run (rollout.endpoint): which path is what, over HTTP on loopback, for agent programs
// that it trains on. An environment worker has it (workers/side/agent_sessions.h); RUN/endpoint.json, of mode
// 0600, says where it is and has its key.
//
//   POST /sessions                with the run's key: a sample to play, as a session with a key of its own;
//                                 429 with Retry-After: none waits
//   POST /sessions/ID/v1/...      with the session's: chat/completions, completions, responses, messages
//   GET  /sessions/ID/v1/models
//   POST /sessions/ID/reward      {"reward": x, "solved": true}: the episode's end
//   GET  /healthz, /metrics

#include <memory>

#include "core/base/status.h"
#include "workers/side/agent_sessions.h"

namespace tidepool::workers {

// kFailedPrecondition: the model has no tokens that end a turn, or the run's folder is not seen here.
// kAlreadyExists: the port is taken.
StatusOr<std::unique_ptr<AgentSessions>> OpenAgentEndpoint(const AgentSessionsOptions& options);

}  // namespace tidepool::workers
