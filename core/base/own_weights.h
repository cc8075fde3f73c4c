#pragma once
// A decoder and an engine number the adapters that they are given from 0. This is none of them: the weights
// that they were made with, a model's or an adapter's.

#include <cstdint>

namespace tidepool {

constexpr int32_t kOwnWeights = -1;

}  // namespace tidepool
