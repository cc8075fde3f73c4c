// Log-probabilities of tokens where the vocabulary is in tiles, or each rank has logits of its own part of
// it.

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/device/log_prob_tiles.h"
#include "core/model/decoder_impl.h"
#include "core/model/row_operations.h"

namespace tidepool::model {

void Decoder::TokenLogProbs(const View& logits, std::span<const int32_t> ids, float temperature,
                            std::span<float> logprobs, std::span<float> entropy, std::span<float> lse) const {
  const Impl& m = *impl_;
  if (m.part.whole() && m.logits_tiles.size() == 1)
    return model::TokenLogProbs(m.device, logits, ids, temperature, logprobs, entropy, lse);
  const size_t n = ids.size();
  if (n == 0) return;
  const std::vector<int32_t> own_ids = m.OwnIds(ids);
  constexpr size_t kNumbers = 5;  // of a device::LogProbTile
  std::vector<float> mine;
  std::vector<int32_t> in_tile(n);
  for (const auto& [first, end] : m.logits_tiles) {
    for (size_t i = 0; i < n; ++i)
      in_tile[i] = own_ids[i] >= first && own_ids[i] < end ? own_ids[i] - static_cast<int32_t>(first) : -1;
    for (const device::LogProbTile& t :
         TileLogProbs(m.device, logits, in_tile, temperature, !entropy.empty(), {first, end})) {
      for (const float number : {t.top, t.log_total, t.entropy, t.logprob, t.has_token ? 1.0F : 0.0F})
        mine.push_back(number);
    }
  }
  const std::vector<float> all = m.OfAllTiles(std::move(mine), n * kNumbers);
  std::vector<device::LogProbTile> tiles(static_cast<size_t>(m.cuts.tiles()));
  for (size_t i = 0; i < n; ++i) {
    for (size_t t = 0; t < tiles.size(); ++t) {
      const float* said = all.data() + (t * n + i) * kNumbers;
      tiles[t] = {said[0], said[1], said[2], said[3], said[4] != 0};
    }
    const device::LogProb sum = device::OfTiles(tiles, device::InverseTemperature(temperature));
    logprobs[i] = sum.logprob;
    if (!entropy.empty()) entropy[i] = sum.entropy;
    if (!lse.empty()) lse[i] = sum.lse;
  }
}

// Ranks with fewer tiles than others fill up.
std::vector<float> Decoder::Impl::OfAllTiles(std::vector<float> mine, size_t each) const {
  if (part.whole()) return mine;
  const auto tiles_of = [&](const std::vector<SumNode>& nodes) {
    size_t tiles = 0;
    for (const SumNode& node : nodes) tiles += static_cast<size_t>(node.tiles);
    return tiles;
  };
  size_t most = 0;
  for (const auto& nodes : cuts.nodes()) most = std::max(most, tiles_of(nodes));
  mine.resize(most * each);
  const std::vector<float> ranks = others().Gather(mine, "head");
  std::vector<float> all;
  for (size_t rank = 0; rank < cuts.nodes().size(); ++rank) {
    const auto from = ranks.begin() + static_cast<int64_t>(rank * most * each);
    all.insert(all.end(), from, from + static_cast<int64_t>(tiles_of(cuts.nodes()[rank]) * each));
  }
  return all;
}

std::vector<float> Decoder::SumOverVocabulary(std::span<const float> values) const {
  const Impl& m = *impl_;
  const auto width = static_cast<size_t>(m.spec.vocab_size), n = values.size() / width;
  std::vector<float> mine;
  for (const auto& [first, end] : m.logits_tiles) {
    for (size_t i = 0; i < n; ++i) {
      const auto row = values.begin() + static_cast<int64_t>(i * width);
      mine.push_back(static_cast<float>(std::accumulate(row + first, row + end, 0.0)));
    }
  }
  const std::vector<float> all = m.OfAllTiles(std::move(mine), n);
  std::vector<float> sums(n);
  for (size_t i = 0; i < all.size(); ++i) sums[i % n] += all[i];
  return sums;
}

std::vector<float> Decoder::OfAllRanks(std::span<const float> mine) const {
  if (impl_->part.whole()) return {mine.begin(), mine.end()};
  return impl_->others().Gather(mine, "head");
}

void Decoder::TokenLogProbsBackward(const View& logits, std::span<const int32_t> ids, float temperature,
                                    std::span<const float> lse, std::span<const float> entropy,
                                    std::span<const float> dlogprobs, std::span<const float> dentropy) const {
  const Impl& m = *impl_;
  if (m.part.whole())
    return model::TokenLogProbsBackward(m.device, logits, ids, temperature, lse, entropy, dlogprobs,
                                        dentropy);
  model::TokenLogProbsBackward(m.device, logits, m.OwnIds(ids), temperature, lse, entropy, dlogprobs,
                               dentropy);
}

}  // namespace tidepool::model
