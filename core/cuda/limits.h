#pragma once
// Sizes that the kernels have. They refuse what is larger, and a job with such a model is refused before
// anything starts (model_check.h).

#include <cstdint>

namespace tidepool::cuda {

constexpr int kHeadSizeMax = 512;
constexpr int kVocabSizeMax = 256 * 1280;  // 327 680: what shared memory holds beside the sampler's counters
constexpr int64_t kExpertsMax = 1024;      // 32 lanes with a word of bits each

}  // namespace tidepool::cuda
