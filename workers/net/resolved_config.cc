#include "workers/net/resolved_config.h"

#include "core/config/load.h"

namespace tidepool::workers {

StatusOr<JobConfig> ParseResolved(const std::string& yaml) {
  StatusOr<config::LoadedConfig> loaded = config::LoadConfigText(yaml, "config of the run");
  if (loaded.ok()) return loaded->config;
  // The controller has read it: whoever cannot is another build, most likely one without a new plug-in.
  return Status(
      loaded.status().code(),
      "this worker program is of another build than the tidepool that started the run; build both (ninja -C "
      "build tidepool tidepool-worker): " +
          loaded.status().message());
}

}  // namespace tidepool::workers
