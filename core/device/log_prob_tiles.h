#pragma once
// Log-probabilities where the logits of a row are in several places (SumTiles of the vocabulary, ranks): from
// three numbers of each.

#include <span>

namespace tidepool::device {

// Of the tokens of one tile alone, at the temperature that is asked for.
struct LogProbTile {
  float lse = 0;      // log of the sum of exp(logit)
  float entropy = 0;  // not read where nobody asks for the entropy
  float logprob = 0;  // of the token, if it is one of the tile's
  bool has_token = false;
};
struct LogProb {
  float logprob = 0, entropy = 0, lse = 0;
};
// Of all tiles, in their order, in float64. Of one tile: its own numbers. NaN where no tile has the token.
LogProb OfTiles(std::span<const LogProbTile> tiles);

}  // namespace tidepool::device
