#pragma once
// The device that tests of model and engine run on: the CPU, or with TIDEPOOL_TEST_DEVICE=checked the CPU
// behind addresses that the host may not touch, =graphs that with graphs, =torch LibTorch's plain operations,
// =cuda CudaDevice over emulated kernels, =cuda_invariant the same with equal bits in every batch, or =gpu
// the first GPU.

#include <memory>

#include "core/device/device.h"

namespace tidepool::device {

std::shared_ptr<Device> TestDevice();
// The same, or the checked one with graphs where that has none.
std::shared_ptr<Device> DeviceWithGraphs();

}  // namespace tidepool::device
