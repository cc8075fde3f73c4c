#include "core/base/places.h"

#include "core/base/config.h"

namespace tidepool {

std::string SideName(const JobConfig& config) {
  return config.environment() == nullptr ? "reward" : "environment";
}

std::string PlaceName(int64_t devices, std::string_view side, int64_t place) {
  return place < devices ? "device-" + std::to_string(place)
                         : std::string(side) + "-" + std::to_string(place - devices);
}

std::string PlaceName(const JobConfig& config, int64_t place) {
  return PlaceName(config.cluster.slots, SideName(config), place);
}

std::string WorkerName(const std::string& place, Incarnation inc) {
  return inc.valid() ? place + "/inc" + std::to_string(inc.value) : place;
}

}  // namespace tidepool
