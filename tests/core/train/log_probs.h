#pragma once
// What a trainer's forward says of rows, for tests.

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/decoder.h"
#include "core/model/memory_use.h"
#include "core/model/weights.h"
#include "core/train/batch.h"
#include "core/train/scoring.h"
#include "core/train/trainer.h"

namespace tidepool::train {

// Log-probabilities [row][response token] under these weights; tokens go through the experts that were
// recorded.
inline StatusOr<std::vector<std::vector<float>>> LogProbs(const model::Weights& weights,
                                                          const TrainerOptions& o,
                                                          std::span<const Row> rows) {
  const model::Decoder decoder(weights,
                               o.device != nullptr ? o.device : std::make_shared<device::CpuDevice>());
  std::vector<int64_t> all(rows.size());
  std::iota(all.begin(), all.end(), 0);
  return ScoreRows(decoder, weights,
                   {.temperature = o.temperature,
                    .micro_batch_tokens = o.micro_batch_tokens,
                    .head_rows = o.head_rows > 0 ? o.head_rows : model::kHeadRows,
                    .replay = true},
                   rows, all);
}

}  // namespace tidepool::train
