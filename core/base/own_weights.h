#pragma once
// A decoder and an engine number the adapters that are added to them from 0. kOwnWeights stands in the place
// of such a number for the weights that they were made with.

#include <cstdint>

namespace tidepool {

constexpr int32_t kOwnWeights = -1;

}  // namespace tidepool
