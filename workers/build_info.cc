#include "workers/build_info.h"

#ifndef TIDEPOOL_COMMIT
#define TIDEPOOL_COMMIT "unknown"
#endif

namespace tidepool::workers {
std::string BuildInfo() { return std::string("tidepool " TIDEPOOL_VERSION " (") + TIDEPOOL_COMMIT + ")"; }
std::string BuildVersion() { return TIDEPOOL_VERSION; }
std::string BuildCommit() { return TIDEPOOL_COMMIT; }
}  // namespace tidepool::workers
