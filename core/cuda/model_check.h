#pragma once
// Whether the CUDA kernels have the sizes of a model. Pure; any thread.

#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::cuda {

// kUnimplemented: they do not; the message names the size and the limit.
Status CheckModel(const model::ModelSpec& spec);

}  // namespace tidepool::cuda
