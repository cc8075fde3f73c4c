#pragma once
// What engine and trainer do with rows of hidden states and logits, which are on a device, by indices and
// numbers, which are on the host. requires indices in range.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/device/log_prob_tiles.h"

namespace tidepool::model {

// For each row i: log softmax(logits[i] / temperature)[ids[i]], in float32 with a fixed order of
// additions; `entropy` (may be empty) gets the entropy at that temperature, `lse` (may be empty) the
// log of the sum of exp(logits / temperature). logits: [n, vocab] of the device, temperature > 0. The
// kernel that samples (SampleArgs::logprob) computes the same number in the same order, so equal logits give
// equal bits in engine and trainer. Of id -1, which
// is not among these columns, the log-probability is NaN, the others are what they are. A logit of -inf has
// probability 0; a NaN in a row makes its log-probability NaN.
void TokenLogProbs(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                   float temperature, std::span<float> logprobs, std::span<float> entropy = {},
                   std::span<float> lse = {});
// The same of columns [first, end) of the logits alone, by row, for device::OfTiles; ids count from `first`
// on. Entropies where they are wanted. requires a device that sums in tiles, or all columns.
std::vector<device::LogProbTile> TileLogProbs(device::Device& device, const device::View& logits,
                                              std::span<const int32_t> ids, float temperature,
                                              bool with_entropy, const std::pair<int64_t, int64_t>& columns);

// Turns logits in place into d loss / d logits given d loss / d logprob (and d loss / d entropy, with
// `entropy`; both may be empty). A row with zero derivatives becomes zero whatever its logits hold.
void TokenLogProbsBackward(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                           float temperature, std::span<const float> lse, std::span<const float> entropy,
                           std::span<const float> dlogprobs, std::span<const float> dentropy);

// out[i] = from[rows[i]]
void GatherRows(device::Device& device, const device::View& from, std::span<const int32_t> rows,
                const device::View& out);

struct Drawn {
  int32_t id = -1;        // -1: the logits hold a value that is not finite
  float log_kept = 0.0F;  // log of the share of mass that the cuts kept; exactly 0 without cuts
  float logprob = 0.0F;   // as TokenLogProbs has it at the draw's temperature, at 1 where that is 0
};
// A token for each of `how`, from the row of logits that `source` names. The host waits once, for all of it.
// `vocabulary`: how sums over it are formed for the log-probability (Decoder::vocabulary).
std::vector<Drawn> DrawTokens(device::Device& device, const device::View& logits,
                              std::span<const int32_t> source, std::span<const device::SampleRow> how,
                              const device::SumTiles& vocabulary);

// sum[rows[i]] += x[i], in order; sum is float32.
void AddRows(device::Device& device, const device::View& x, std::span<const int32_t> rows,
             const device::View& sum);

// Rows as float32 on the host, and back, rounded to the dtype of `to`.
std::vector<float> ToHost(device::Device& device, const device::View& from);
void FromHost(device::Device& device, std::span<const float> from, const device::View& to);
// A float32 array rounded to `dtype`; itself where that is float32.
device::Array Rounded(device::Device& device, const device::Array& wide, DType dtype);

}  // namespace tidepool::model
