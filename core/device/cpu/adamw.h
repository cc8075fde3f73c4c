#pragma once
// The optimizer's kernels (core/device/arguments.h) on the CPU, by Threads() threads. Each element of an
// update depends on its own inputs alone, and a sum of squares on its numbers and their count: not on the
// threads.

#include "core/device/arguments.h"

namespace tidepool::device {

template <typename T>
void AdamW(const AdamWArgs<T>& args);
void SquareSum(const SquareSumArgs& args);

}  // namespace tidepool::device
