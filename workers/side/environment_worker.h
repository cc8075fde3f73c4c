#pragma once
// The process that hosts environments: it plays turns of episodes for the controller.
//
// The unit is down::EnvStep: all actions of an episode so far. The worker keeps the games that are under way
// and plays what is new; a game that it does not know (another worker had it) is replayed from its actions,
// so losing this process loses nothing. The games are in this process, or in a service that it starts or
// finds (workers/side/environment_services.h). One thread computes games as their turn comes, and so many
// wait for a service; the drawn latency of a turn (environment.latency) is waited for in a queue, so any
// number of episodes wait at once. Another thread says that the worker lives, and ends it with the name of a
// game whose turn does not come back. Outcomes: ok, data (the game broke its own rules: not tried again),
// infra (the turn did not fit its deadline: the controller tries again elsewhere).
//
// Another kind of environment: messages of its own in workers/net/messages.h and their lists,
// handled in EnvironmentWorker::Take (environment_worker.cc); launch, attach, heartbeats, fencing and
// restarts are those of every worker and need nothing more.

#include <stop_token>
#include <string>

#include "core/environments/episode.h"
#include "workers/net/messages.h"
#include "workers/side/agent_sessions.h"
#include "workers/side/side_worker.h"

namespace tidepool::workers {

struct EnvironmentWorkerOptions : SideWorkerOptions {
  bool vector = false;  // hosts the vectorised environments of a control task for device workers
                        // (workers/side/vector_service.h), in this process or in services (served_vectors.h)
  OpenAgentSessions open_agents = {};  // of a run with rollout.endpoint, whose episodes programs outside play
};

// What came of the actions of `step` in the game named `environment`; no_room: nothing, at once.
up::EnvStepped PlayTurn(environments::EpisodeHost& host, const std::string& environment,
                        const down::EnvStep& step, const std::stop_token& stop = {});

// Runs until the controller says Shutdown or is gone; exit code as RunDeviceWorker.
int RunEnvironmentWorker(const EnvironmentWorkerOptions& options);

}  // namespace tidepool::workers
