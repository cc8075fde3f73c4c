#pragma once
// Batches of random rows for tests of the trainer.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/train/trainer.h"
#include "tests/core/model/reference.h"

namespace tidepool::train {

struct RowKind {
  int64_t longest = 12;  // tokens of a response, at most
  bool each_trained =
      false;  // the first token of each response is trained on; else a row may be masked as a whole
  bool routing = false;  // with the experts that an engine would have recorded
};

// Groups of samples with one prompt each; about a fifth of the tokens is masked.
inline Batch RandomRows(const model::ModelSpec& spec, Rng& rng, int64_t groups, int64_t samples,
                        const RowKind& kind = {}) {
  Batch b;
  b.step = StepNumber{1};
  b.version = Version{0, 0};
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<int32_t> prompt = model::RandomIds(rng, 2 + rng.Below(7), spec.vocab_size);
    for (int64_t s = 0; s < samples; ++s) {
      Row r;
      r.tid = {g, 0, static_cast<int32_t>(s)};
      r.gid = GroupId{g};
      r.prompt = prompt;
      r.response = model::RandomIds(rng, 1 + rng.Below(kind.longest), spec.vocab_size);
      r.reward = rng.Normal();
      r.versions.assign(r.response.size(), b.version);
      for (size_t t = 0; t < r.response.size(); ++t) {
        r.loss_mask.push_back((kind.each_trained && t == 0) || rng.Chance(0.8) ? 1 : 0);
        r.logprobs.push_back(static_cast<float>(-3 - rng.Uniform()));
        for (int64_t layer = 0; kind.routing && layer < spec.sparse_layers(); ++layer) {
          const int64_t first = rng.Below(spec.moe.experts);  // neighbours, so that none is there twice
          for (int64_t k = 0; k < spec.moe.experts_per_token; ++k)
            r.routing.push_back(static_cast<char>((first + k) % spec.moe.experts));
        }
      }
      b.rows.push_back(std::move(r));
    }
  }
  return b;
}

}  // namespace tidepool::train
