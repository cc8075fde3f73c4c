#pragma once
// What the token_logprob kernel computes, on the CPU in float64, for tests and for reading.
//
//   z = logits / temperature,  lse = log sum_j exp(z_j)
//   logprob = z[id] - lse            entropy = lse - sum_j softmax(z)_j z_j        (nats)

#include <cstdint>
#include <span>

namespace tidepool::cuda {

// logits: [n, vocab] packed, float32. ids: [n], in [0, vocab). Outputs [n]; entropy may be empty.
void TokenLogProbReference(std::span<const float> logits, std::span<const int32_t> ids, float temperature,
                           std::span<double> logprobs, std::span<double> entropy);

}  // namespace tidepool::cuda
