// Log-probability and entropy of given tokens from logits, without a [n, vocab] softmax in memory, and its
// backward in place.
//
// Forward: the largest logit, then the masses (vocab_parts.h), so that the sampler's own log-probability has
// the same bits; then they are added up, a block a row. Backward: element by element, a block takes 4096 of
// them.

#include "core/cuda/kernels/vocab_parts.h"

namespace tidepool::cuda {
namespace {

constexpr int kLogProbThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kLogProbThreads)
    TokenLogProbKernel(device::TokenLogProbArgs<T> a, VocabParts v) {
  TP_SHARED(float, tiles, kVocabTilesMax);
  TP_SHARED(float, weighted, kVocabTilesMax);
  TP_SHARED(double, groups, kGroupsMax);
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t n = blockIdx.x, vocab = a.vocab;
  const float scale = a.inv_temperature;
  bool finite = false;  // a masked logit (-inf) weighs nothing, and a NaN makes the total NaN
  const float max = MaxOfParts(v, n, &finite);
  for (int64_t t = threadIdx.x; t < v.tiles; t += kLogProbThreads) {
    tiles[t] = View(v.sum)[n * v.tiles + t];
    if (a.entropy != nullptr) weighted[t] = View(v.weighted)[n * v.tiles + t];
  }
  __syncthreads();
  const double total = AddGroups(v.tiles, tiles, groups);
  __syncthreads();  // all have read it
  const double sum = a.entropy == nullptr ? 0.0 : AddGroups(v.tiles, weighted, groups);
  if (threadIdx.x != 0) return;
  const int32_t id = View(a.ids)[n];
  const float log_total = LogOfTotal(total);
  View(a.logprob)[n] = id < 0 || id >= vocab
                           ? NAN
                           : TokenLogProbOf(Get(View(a.logits), n * vocab + id), max, scale, log_total);
  if (a.lse != nullptr) View(a.lse)[n] = max * scale + log_total;
  if (a.entropy != nullptr) View(a.entropy)[n] = log_total - static_cast<float>(sum / total);
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
  VocabParts v;
  if (const int code = SumVocab(VocabRows<T>{.rows = a.rows,
                                             .vocab = a.vocab,
                                             .logits = a.logits,
                                             .scale = a.inv_temperature,
                                             .entropy = a.entropy != nullptr},
                                launcher, &v);
      code != 0) {
    return code;
  }
  return Launch({.name = "token_logprob", .x = a.rows, .threads = kLogProbThreads, .early = true},
                launcher.stream(), TokenLogProbKernel<T>, a, v);
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
