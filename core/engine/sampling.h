#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/device/arguments.h"
#include "core/engine/request.h"

namespace tidepool::engine {

// kInvalidArgument if a value is out of its range; names it.
Status CheckSampling(const SamplingParams& params, int64_t vocab_size);

// How a device draws a token with these parameters and a number in [0, 1).
device::SampleRow SampleRowOf(const SamplingParams& params, float uniform);

}  // namespace tidepool::engine
