#pragma once
// Rules for environments that are services (proto/environment.proto), and what is asked of one before its job
// is known in full.

#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/config/binder.h"
#include "core/config/load.h"

namespace tidepool::config {

// Of what is written alone; the service itself is asked by TryGames. False: it has complained.
bool CheckService(Binder& b, const EnvironmentConfig& e);

// Asks the service of a job with model.policy what it sees and does, fills the keys that say so
// (environment.observation_size and others), and checks the job with them. As TryGames otherwise.
StatusOr<std::string> AskSpaces(LoadedConfig& loaded, const AskService& ask_service);

}  // namespace tidepool::config
