#pragma once
// How many bytes training takes, before anything is allocated (`tidepool train --dry-run`). Pure; no
// LibTorch.

#include <cstdint>

#include "core/model/spec.h"

namespace tidepool::train {

struct MemoryPrediction {
  int64_t parameters = 0;        // elements of the flat space, padding included
  int64_t weights_bytes = 0;     // shared with the rollout role of the same process
  int64_t optimizer_bytes = 0;   // m, v, and what rounding cut off the master copy
  int64_t gradient_bytes = 0;    // float32; given back by Trainer::ReleaseScratch
  int64_t activation_bytes = 0;  // of one micro-batch, logits and workspace included; given back too
  [[nodiscard]] int64_t total() const {
    return weights_bytes + optimizer_bytes + gradient_bytes + activation_bytes;
  }
};

// Peak of a step in one process, apart from what the process itself takes (LibTorch: about 0.13 GB).
// tokens: computed together, that is train.micro_batch_tokens or less.
MemoryPrediction PredictTrainerMemory(const model::ModelSpec& spec, model::DType dtype, int64_t tokens,
                                      bool recompute, int64_t head_rows = 256);

}  // namespace tidepool::train
