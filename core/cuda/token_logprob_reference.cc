#include "core/cuda/token_logprob_reference.h"

#include <algorithm>
#include <cmath>

namespace tidepool::cuda {

void TokenLogProbReference(std::span<const float> logits, std::span<const int32_t> ids, float temperature,
                           std::span<double> logprobs, std::span<double> entropy) {
  if (ids.empty()) return;
  const size_t vocab = logits.size() / ids.size();
  for (size_t row = 0; row < ids.size(); ++row) {
    const auto z = logits.subspan(row * vocab, vocab);
    const double max = *std::ranges::max_element(z);
    double sum = 0;
    double weighted = 0;  // sum of exp(y) y with y = (logit - max) / temperature
    for (const float v : z) {
      const double y = (v - max) / temperature;
      sum += std::exp(y);
      weighted += std::exp(y) * y;
    }
    logprobs[row] = (z[static_cast<size_t>(ids[row])] - max) / temperature - std::log(sum);
    if (!entropy.empty()) entropy[row] = std::log(sum) - weighted / sum;
  }
}

}  // namespace tidepool::cuda
