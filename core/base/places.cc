#include "core/base/places.h"

#include "core/base/config.h"

namespace tidepool {

std::string ToString(WorkerId worker) { return "w" + std::to_string(worker.value); }

std::string SideName(const JobConfig& config) {
  return config.environment() == nullptr ? "reward" : "environment";
}

std::string PlaceName(const JobConfig& config, int64_t place) {
  const int64_t devices = config.cluster.slots;
  return place < devices ? "device-" + std::to_string(place)
                         : SideName(config) + "-" + std::to_string(place - devices);
}

}  // namespace tidepool
