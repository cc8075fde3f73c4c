#pragma once
// Whether this machine's matrix products give a row the same bits in every batch.
//
// The deterministic mode rests on it: prefill, decode and training multiply the same row by the same
// weights in products of 16, 32, 48 ... rows. LibTorch does not promise it; it was found to hold on
// AVX-512 with bfloat16 instructions (all row counts >= 2) and for float32 in multiples of 16 rows.

#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::model {

// Multiplies rows by matrices of each shape of the model in batches of different sizes and places,
// with one thread and with the present number of threads. kFailedPrecondition names the shapes that
// are not invariant. Takes 0.1-0.5 s on a 135M model. Changes at::set_num_threads() for its duration:
// call it at start-up, before other threads compute.
Status SelfTestBatchInvariance(const ModelSpec& spec, DType dtype);

}  // namespace tidepool::model
