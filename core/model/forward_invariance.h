#pragma once
// Whether a device gives a token the same bits whatever it is computed with, tried on this machine: the rest
// of what deterministic mode rests on beside products (core/device/batch_invariance.h).

#include <memory>

#include "core/base/choices.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/spec.h"

namespace tidepool::model {

// One block with the heads of this model, random weights, and inner widths that are no larger than the trial
// needs: sequences as a whole, in two pieces, and token by token, alone and beside others, where the device
// has graphs by a recorded step. Takes the memory of that block and some hundred rows. kFailedPrecondition:
// some token has other bits; names the device and where.
Status TryForwardInvariance(const std::shared_ptr<device::Device>& device, const ModelSpec& spec,
                            DType dtype);

}  // namespace tidepool::model
