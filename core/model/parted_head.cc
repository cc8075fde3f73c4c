// Log-probabilities of tokens where each rank has logits of its own part of the vocabulary.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/model/decoder_impl.h"
#include "core/model/row_operations.h"

namespace tidepool::model {

void Decoder::TokenLogProbs(const View& logits, std::span<const int32_t> ids, float temperature,
                            std::span<float> logprobs, std::span<float> entropy, std::span<float> lse) const {
  const Impl& m = *impl_;
  if (m.part.whole()) return model::TokenLogProbs(m.device, logits, ids, temperature, logprobs, entropy, lse);
  const size_t n = ids.size();
  if (n == 0) return;
  // Of this rank's tokens alone: their sum, their mean logit (which the entropy gives), and the logit of the
  // token that was taken, which one rank has.
  std::vector<float> own_logprob(n), own_entropy(n), own_lse(n);
  const std::vector<int32_t> own_ids = m.OwnIds(ids);
  model::TokenLogProbs(m.device, logits, own_ids, temperature, own_logprob, own_entropy, own_lse);
  std::vector<float> mine;
  for (size_t i = 0; i < n; ++i) {
    mine.push_back(own_lse[i]);
    mine.push_back(own_entropy[i]);
    mine.push_back(own_ids[i] < 0 ? 0.0F : own_logprob[i]);
  }
  for (const int32_t id : own_ids) mine.push_back(id < 0 ? 0.0F : 1.0F);
  const std::vector<float> all = m.peers->Gather(mine, "head");
  const size_t stride = mine.size();
  const auto ranks = static_cast<size_t>(m.part.of);
  for (size_t i = 0; i < n; ++i) {
    const auto said = [&](size_t rank, size_t what) -> double { return all[rank * stride + 3 * i + what]; };
    double top = said(0, 0), sum = 0, mean = 0, token = 0;
    for (size_t r = 1; r < ranks; ++r) top = std::max(top, said(r, 0));
    for (size_t r = 0; r < ranks; ++r) sum += std::exp(said(r, 0) - top);
    const double total = top + std::log(sum);
    for (size_t r = 0; r < ranks; ++r) {
      const double share = std::exp(said(r, 0) - total);
      if (share > 0) mean += share * (said(r, 0) - said(r, 1));
      if (all[r * stride + 3 * n + i] != 0) token = said(r, 2) + said(r, 0);
    }
    logprobs[i] = static_cast<float>(token - total);
    if (!entropy.empty()) entropy[i] = static_cast<float>(total - mean);
    if (!lse.empty()) lse[i] = static_cast<float>(total);
  }
}

std::vector<float> Decoder::OfAllRanks(std::span<const float> mine) const {
  if (impl_->part.whole()) return {mine.begin(), mine.end()};
  return impl_->peers->Gather(mine, "head");
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
