#include "core/cuda/model_check.h"

#include <string>

#include "core/cuda/limits.h"

namespace tidepool::cuda {

Status CheckModel(const model::ModelSpec& spec) {
  const auto check = [](const char* what, int64_t found, int64_t most) {
    if (found <= most) return OkStatus();
    return Unimplemented(std::string(what) + " is " + std::to_string(found) +
                         ", and the CUDA kernels have it up to " + std::to_string(most) +
                         "; use cluster.device: cpu, or another model");
  };
  static_assert(kHeadSizeMax >= model::kHeadSizeMost);  // larger ones are no model
  TP_RETURN_IF_ERROR(check("the vocabulary (vocab_size)", spec.vocab_size, kVocabSizeMax));
  return check("the number of experts", spec.moe.experts, kExpertsMax);
}

}  // namespace tidepool::cuda
