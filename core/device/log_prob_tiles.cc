#include "core/device/log_prob_tiles.h"

#include <algorithm>
#include <cmath>

namespace tidepool::device {

LogProb OfTiles(std::span<const LogProbTile> tiles) {
  double top = tiles[0].lse, sum = 0, mean = 0, token = NAN;
  for (const LogProbTile& t : tiles) top = std::max<double>(top, t.lse);
  for (const LogProbTile& t : tiles) sum += std::exp(t.lse - top);
  const double total = top + std::log(sum);
  for (const LogProbTile& t : tiles) {
    const double share = std::exp(t.lse - total);
    if (share > 0) mean += share * (double{t.lse} - t.entropy);  // the mean logit of the tile
    if (t.has_token) token = double{t.logprob} + t.lse;
  }
  return {static_cast<float>(token - total), static_cast<float>(total - mean), static_cast<float>(total)};
}

}  // namespace tidepool::device
