#pragma once
// Log-probabilities where the logits of a row are in several places (SumTiles of the vocabulary, ranks): from
// a few numbers of each.

#include <span>

namespace tidepool::device {

// Of the tokens of one tile alone (TokenLogProbArgs with `top`).
struct LogProbTile {
  float top = 0;        // largest logit, before the temperature
  float log_total = 0;  // log of the sum of exp((logit - top) / temperature)
  float entropy = 0;    // not read where nobody asks for the entropy
  float logprob = 0;    // of the token among the tile's, if it is one of them
  bool has_token = false;
};
struct LogProb {
  float logprob = 0, entropy = 0, lse = 0;
};
// Of all tiles, in their order, in float64. NaN where no tile has the token.
LogProb OfTiles(std::span<const LogProbTile> tiles, float inv_temperature);

}  // namespace tidepool::device
