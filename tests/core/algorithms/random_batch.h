#pragma once
// Random batches for the tests of this folder: uneven masks with holes, rows without a valid cell, columns
// whose masked cells hold NaN.

#include <cmath>
#include <limits>
#include <vector>

#include "core/algorithms/policy_loss.h"
#include "core/base/rng.h"

namespace tidepool::algorithms {

struct RandomBatch {
  Cells cells;
  std::vector<double> logp, advantages, old_logp, behave_logp, ref_logp, entropy, scores;
  std::vector<int64_t> versions;

  RandomBatch(Rng& rng, int64_t rows, int64_t width) {
    std::vector<uint8_t> mask;
    for (int64_t i = 0; i < rows; ++i) {
      const bool none = rng.Chance(0.15);
      for (int64_t t = 0; t < width; ++t) mask.push_back(!none && rng.Chance(0.7) ? 1 : 0);
    }
    cells = Cells::Padded(rows, width, mask);
    const auto fill = [&](std::vector<double>& column, auto&& draw) {
      for (const uint8_t m : mask)
        column.push_back(m != 0 ? draw() : std::numeric_limits<double>::quiet_NaN());
    };
    const auto near = [&](double centre, double spread) { return centre + spread * (2 * rng.Uniform() - 1); };
    fill(logp, [&] { return near(-1.5, 1); });
    fill(advantages, [&] { return near(0, 2); });
    fill(entropy, [&] { return near(1, 1); });
    for (size_t t = 0; t < mask.size(); ++t) {
      old_logp.push_back(near(logp[t], 0.5));
      behave_logp.push_back(near(old_logp[t], 0.3));
      ref_logp.push_back(near(logp[t], 0.6));
      versions.push_back(static_cast<int64_t>(rng.Uniform() * 8) - 1);
    }
    for (int64_t i = 0; i < rows; ++i) scores.push_back(near(0, 1));
  }

  [[nodiscard]] PolicyBatch Batch() const {
    return {.logp = logp,
            .advantages = advantages,
            .old_logp = old_logp,
            .behave_logp = behave_logp,
            .ref_logp = ref_logp,
            .entropy = entropy,
            .versions = versions,
            .scores = scores};
  }
};

}  // namespace tidepool::algorithms
