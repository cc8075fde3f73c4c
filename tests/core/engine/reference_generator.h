#pragma once
// Generation without an engine: one sample, every token from a forward over its whole prefix, contiguous
// KV. And a tiny model to try it on.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/engine/request.h"
#include "core/model/weights.h"

namespace tidepool::engine {

struct Record {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<float> log_kept;
  std::string routing;
  friend bool operator==(const Record&, const Record&) = default;
};

// `count` tokens, or up to and with the first end token of the model.
Record ReferenceGenerate(const model::Weights& weights, uint64_t seed, const SampleId& tid,
                         const std::vector<int32_t>& prompt, int64_t count, const SamplingParams& sampling);

// Two layers, grouped-query attention, vocabulary of 97 with end token 96.
std::unique_ptr<model::Weights> TinyModel(model::DType dtype, uint64_t seed, bool experts = false);

}  // namespace tidepool::engine
