#pragma once
// What a worker's place is called. Pure.

#include <cstdint>
#include <string>

#include "core/base/ids.h"

namespace tidepool {

struct JobConfig;

std::string ToString(WorkerId worker);  // "w2": in the journal and in logs
// Workers beside the devices: "reward", or "environment", where the job has one.
std::string SideName(const JobConfig& config);
// For people, and of its log: "device-0", "reward-0". The devices come first.
std::string PlaceName(const JobConfig& config, int64_t place);

}  // namespace tidepool
