#pragma once
// The batch that benchmarks of several ranks train: rows of random tokens, one a group.

#include <cstdint>
#include <utility>

#include "core/base/rng.h"
#include "core/train/batch.h"

namespace tidepool::bench {

// Of a step, as rank `rank` of `ranks` gets it that share the rows by turns.
inline train::Batch ShareOfNoise(int64_t vocab, int64_t rows, int64_t length, int64_t step, int ranks,
                                 int rank) {
  Rng rng(static_cast<uint64_t>(step));
  train::Batch b;
  b.step = StepNumber{step};
  b.version = Version{0, step - 1};
  for (int64_t g = 0; g < rows; ++g) {
    train::Row r;
    r.tid = {g, 0, 0};
    r.gid = GroupId{g};
    for (int64_t i = 0; i < length; ++i) {
      const auto id = static_cast<int32_t>(rng.Below(vocab));
      (i == 0 ? r.prompt : r.response).push_back(id);
    }
    r.logprobs.assign(r.response.size(), -10.8F);
    r.versions.assign(r.response.size(), b.version);
    r.reward = static_cast<double>(g % 2);
    if (g % ranks != rank) {
      r.elsewhere = {.prompt = r.prompt_tokens(), .response = r.response_tokens()};
      r.prompt.clear(), r.response.clear(), r.logprobs.clear();
    }
    b.rows.push_back(std::move(r));
  }
  return b;
}

}  // namespace tidepool::bench
