// Log-probability and entropy of given tokens from logits, without a [n, vocab] softmax in memory, and its
// backward in place.
//
// Forward: one block a row, two sweeps: the largest logit, then the masses (vocab_row.h), so that the
// sampler's own log-probability has the same bits. Bound by reading the logits; the second sweep mostly hits
// L2. Backward: element by element, a block takes 4096 of them.

#include "core/cuda/kernels/launch.h"
#include "core/cuda/kernels/vocab_row.h"

namespace tidepool::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kVocabThreads) TokenLogProbKernel(device::TokenLogProbArgs<T> a) {
  TP_SHARED(float, tiles, kVocabTilesMax);
  TP_SHARED(float, weighted, kVocabTilesMax);
  TP_SHARED(float, scratch, kVocabThreads / 32);
  const int64_t n = blockIdx.x, vocab = a.vocab;
  const float scale = a.inv_temperature;
  const Global<const T> row = View(a.logits) + n * vocab;
  bool finite = false;  // a masked logit (-inf) weighs nothing, and a NaN makes the total NaN
  const float max = RowMax(row, vocab, scratch, &finite);
  SumTiles<true>(row, vocab, max, scale, -INFINITY, tiles, weighted);
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0, sum = 0.0;
  for (int64_t t = 0; t < CeilDiv<int64_t>(vocab, kVocabTile); ++t) {
    total = __dadd_rn(total, tiles[t]);
    sum += weighted[t];
  }
  const int32_t id = View(a.ids)[n];
  const float log_total = LogOfTotal(total);
  View(a.logprob)[n] = id < 0 || id >= vocab ? NAN : TokenLogProbOf(Get(row, id), max, scale, log_total);
  if (a.entropy != nullptr) View(a.entropy)[n] = log_total - static_cast<float>(sum / total);
  if (a.lse != nullptr) View(a.lse)[n] = max * scale + log_total;
}

constexpr int kBackThreads = 256;
constexpr int kBackColumns = 4096;

// d logp(id) / dz = 1[j = id] - p_j;  d H / dz_j = -p_j (log p_j + H).
template <typename T>
__global__ void __launch_bounds__(kBackThreads)
    TokenLogProbBackwardKernel(device::TokenLogProbBackwardArgs<T> a, bool wide) {
  const int64_t n = blockIdx.x, vocab = a.vocab;
  const float scale = a.inv_temperature;
  const Global<T> row = View(a.logits) + n * vocab;
  const int32_t id = View(a.ids)[n];
  const float g = View(a.dlogprob)[n] * scale;
  const float h = a.dentropy == nullptr ? 0.0F : View(a.dentropy)[n] * scale;
  const float log_sum = View(a.lse)[n];
  const float ent = a.dentropy == nullptr ? 0.0F : View(a.entropy)[n];
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kBackColumns;
  const int64_t end = vocab < begin + kBackColumns ? vocab : begin + kBackColumns;
  for (int64_t c = begin + static_cast<int64_t>(threadIdx.x) * 8; c < end; c += kBackThreads * 8) {
    float v[8];
    GetChunk(row, c, end, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      // A masked token adds nothing, whatever its logits hold.
      if (g == 0.0F && h == 0.0F) {
        v[j] = 0.0F;
        continue;
      }
      const float logp = v[j] * scale - log_sum;
      const float p = __expf(logp);
      float d = g * ((c + j == id ? 1.0F : 0.0F) - p);
      if (h != 0.0F) d -= p > 0.0F ? p * (logp + ent) * h : 0.0F;
      v[j] = d;
    }
    PutChunk(row, c, end, wide, v);
  }
}

}  // namespace

template <typename T>
int TokenLogProb(const device::TokenLogProbArgs<T>& a, Launcher& launcher) {
  if (a.rows < 0 || a.vocab < 1 || a.vocab > kVocabTile * kVocabTilesMax || !(a.inv_temperature > 0.0F)) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  return Launch({.name = "token_logprob", .x = a.rows, .threads = kVocabThreads}, launcher.stream(),
                TokenLogProbKernel<T>, a);
}

template <typename T>
int TokenLogProbBackward(const device::TokenLogProbBackwardArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "token_logprob_backward",
                 .x = a.rows,
                 .y = CeilDiv<int64_t>(a.vocab, kBackColumns),
                 .threads = kBackThreads},
                launcher.stream(), TokenLogProbBackwardKernel<T>, a, Wide(a.vocab, a.logits));
}

TP_INSTANTIATE(TokenLogProb)
TP_INSTANTIATE(TokenLogProbBackward)

}  // namespace tidepool::cuda
