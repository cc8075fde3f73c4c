#pragma once
// Log-probabilities of rows under any model with the policy's vocabulary: the policy itself before an update,
// a frozen reference, a teacher. Forward only; the call that the engine makes too.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "core/train/batch.h"
#include "core/train/packing.h"

namespace tidepool::train {

struct ScoringOptions {
  double temperature = 1;
  int64_t micro_batch_tokens = 2048;
  int64_t head_rows = 256;  // rows of logits held at a time
  bool replay = false;      // tokens go through the experts that were recorded with the rows
};

// The packed batch for a decoder. `experts` (not null: recorded routing is replayed) holds that and outlives
// the view.
model::RaggedBatch View(const model::ModelSpec& spec, std::span<const Row> rows, const PackedBatch& packed,
                        std::vector<int32_t>* experts);

// Final hidden states of the packed tokens, without anything kept for a backward.
device::Array HiddenStates(const model::Decoder& decoder, const model::Weights& weights,
                           const model::RaggedBatch& batch);

// Called before each micro-batch with how many are done, and of how many. false: stop, with kAborted.
using ScoringProgress = std::function<bool(int64_t done, int64_t total)>;

// What else of each token's distribution is wanted, [row][response token]; null: not that.
struct ScoringExtras {
  std::vector<std::vector<float>>* squares = nullptr;    // sum_v p_v^2
  std::vector<std::vector<float>>* likeliest = nullptr;  // 1 where no other token is likelier, else 0
  ScoringProgress progress = nullptr;
};

// Where ranks need each other's experts all of them call it, and go on until each has its rows.
//
// [row][response token]; rows not among `places` stay empty. kInvalidArgument: a row is longer than the
// budget.
StatusOr<std::vector<std::vector<float>>> ScoreRows(const model::Decoder& decoder,
                                                    const model::Weights& weights,
                                                    const ScoringOptions& options, std::span<const Row> rows,
                                                    std::span<const int64_t> places,
                                                    const ScoringExtras& extras = {});

}  // namespace tidepool::train
