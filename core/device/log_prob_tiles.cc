#include "core/device/log_prob_tiles.h"

#include <algorithm>
#include <cmath>

namespace tidepool::device {

LogProb OfTiles(std::span<const LogProbTile> tiles, float inv_temperature) {
  double top = tiles[0].top, sum = 0, mean = 0, token = NAN;
  for (const LogProbTile& t : tiles) top = std::max<double>(top, t.top);
  // The log of a tile's sum, less the largest logit: what a tiny temperature would make infinite for all.
  const auto share_of = [&](const LogProbTile& t) { return (t.top - top) * inv_temperature + t.log_total; };
  for (const LogProbTile& t : tiles) sum += std::exp(share_of(t));
  const double total = std::log(sum);
  for (const LogProbTile& t : tiles) {
    const double log_share = share_of(t) - total, share = std::exp(log_share);
    if (share > 0) mean += share * (share_of(t) - t.entropy);  // the mean logit of the tile
    if (t.has_token) token = double{t.logprob} + log_share;
  }
  return {static_cast<float>(token), static_cast<float>(total - mean),
          static_cast<float>(top * inv_temperature + total)};
}

}  // namespace tidepool::device
