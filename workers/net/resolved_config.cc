#include "workers/net/resolved_config.h"

#include "core/config/load.h"

namespace tidepool::workers {

StatusOr<JobConfig> ParseResolved(const std::string& yaml) {
  TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfigText(yaml, "config of the run"));
  return loaded.config;
}

}  // namespace tidepool::workers
