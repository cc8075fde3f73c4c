#pragma once
// Whether a device gives a row of a product the same bits in every batch, tried on this machine: what
// deterministic mode rests on where a device says so of itself (Device::batch_invariant) and nobody has seen
// all machines.

#include <span>

#include "core/base/choices.h"
#include "core/base/status.h"
#include "core/device/device.h"

namespace tidepool::device {

// Multiplies rows by matrices of these shapes in batches of several sizes and from several rows on.
// kFailedPrecondition: some rows differ; names the device and the matrices. kResourceExhausted: the largest
// matrix and its rows do not fit the device.
Status TryBatchInvariance(Device& device, std::span<const ProductShape> products, DType dtype);

}  // namespace tidepool::device
