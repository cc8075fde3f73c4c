#pragma once
// Digests of buckets (core/device/arguments.h) on the CPU, by Threads() threads.

#include "core/device/arguments.h"

namespace tidepool::device {

void SaltedSums(const SaltedSumsArgs& args);

}  // namespace tidepool::device
