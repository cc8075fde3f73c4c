#pragma once
// What a worker is called, wherever people read of it: in sentences, logs, the status, and the names of its
// files. Pure.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/ids.h"

namespace tidepool {

struct JobConfig;

// Workers beside the devices: "reward", or "environment", where the job has one.
std::string SideName(const JobConfig& config);
// "device-0", "reward-0". The devices come first; `side`: the kind of those beside them.
std::string PlaceName(int64_t devices, std::string_view side, int64_t place);
std::string PlaceName(const JobConfig& config, int64_t place);
// One life of the worker in that place: "reward-0/inc3". Where no single one is meant (not valid): the place.
std::string WorkerName(const std::string& place, Incarnation inc);

}  // namespace tidepool
