// Log-probability and entropy of given tokens from logits, without a [n, vocab] softmax in memory, and its
// backward in place.
//
// Forward: one block a row, two sweeps: the largest logit, then the masses (vocab_row.h), so that the
// sampler's own log-probability has the same bits. Bound by reading the logits; the second sweep mostly hits
// L2. Backward: element by element, a block takes 4096 of them.

#include "core/cuda/abi.h"
#include "core/cuda/kernels/launch_functions.h"
#include "core/cuda/kernels/vocab_row.h"

namespace tidepool::cuda {
namespace {

struct LogProbOut {
  float* logprob;
  float* entropy;  // may be null
  float* lse;      // may be null
};

template <typename T>
__global__ void __launch_bounds__(kVocabThreads)
    TokenLogProbKernel(const T* logits, int64_t row_stride, const int32_t* ids, int64_t vocab, float scale,
                       LogProbOut out) {
  TP_SHARED(float, tiles, kVocabTilesMax);
  TP_SHARED(float, weighted, kVocabTilesMax);
  TP_SHARED(float, scratch, kVocabThreads / 32);
  const int64_t n = blockIdx.x;
  const Global<const T> row = View(logits) + n * row_stride;
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
  const int32_t id = View(ids)[n];
  const float log_total = LogOfTotal(total);
  View(out.logprob)[n] = id < 0 || id >= vocab ? NAN : TokenLogProbOf(Get(row, id), max, scale, log_total);
  if (out.entropy != nullptr) View(out.entropy)[n] = log_total - static_cast<float>(sum / total);
  if (out.lse != nullptr) View(out.lse)[n] = max * scale + log_total;
}

constexpr int kBackThreads = 256;
constexpr int kBackColumns = 4096;

// d logp(id) / dz = 1[j = id] - p_j;  d H / dz_j = -p_j (log p_j + H).
template <typename T>
__global__ void __launch_bounds__(kBackThreads)
    TokenLogProbBackwardKernel(int64_t vocab, T* logits, const int32_t* ids, float scale, const float* lse,
                               const float* entropy, const float* dlogprob, const float* dentropy,
                               bool wide) {
  const int64_t n = blockIdx.x;
  const Global<T> row = View(logits) + n * vocab;
  const int32_t id = View(ids)[n];
  const float g = View(dlogprob)[n] * scale;
  const float h = dentropy == nullptr ? 0.0F : View(dentropy)[n] * scale;
  const float log_sum = View(lse)[n];
  const float ent = dentropy == nullptr ? 0.0F : View(entropy)[n];
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

template <typename T>
int Forward(const T* logits, int64_t row_stride, const int32_t* ids, int64_t rows, int64_t vocab, float scale,
            const LogProbOut& out, Stream stream) {
  if (rows < 0 || vocab < 1 || vocab > kVocabTile * kVocabTilesMax || row_stride < vocab || !(scale > 0.0F)) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  return Launch({.name = "token_logprob", .x = rows, .threads = kVocabThreads}, stream, TokenLogProbKernel<T>,
                logits, row_stride, ids, vocab, scale, out);
}

}  // namespace

template <typename T>
int TokenLogProb(int64_t rows, int64_t vocab, const T* logits, const int32_t* ids, float inv_temperature,
                 float* logprob, float* entropy, float* lse, Stream stream) {
  return Forward(logits, vocab, ids, rows, vocab, inv_temperature, {logprob, entropy, lse}, stream);
}

template <typename T>
int TokenLogProbBackward(int64_t rows, int64_t vocab, T* logits, const int32_t* ids, float inv_temperature,
                         const float* lse, const float* entropy, const float* dlogprob, const float* dentropy,
                         Stream stream) {
  return Launch({.name = "token_logprob_backward",
                 .x = rows,
                 .y = CeilDiv<int64_t>(vocab, kBackColumns),
                 .threads = kBackThreads},
                stream, TokenLogProbBackwardKernel<T>, vocab, logits, ids, inv_temperature, lse, entropy,
                dlogprob, dentropy, Wide(vocab, logits));
}

#define TP_INSTANTIATE(T)                                                                                 \
  template int TokenLogProb<T>(int64_t, int64_t, const T*, const int32_t*, float, float*, float*, float*, \
                               Stream);                                                                   \
  template int TokenLogProbBackward<T>(int64_t, int64_t, T*, const int32_t*, float, const float*,         \
                                       const float*, const float*, const float*, Stream);
TP_INSTANTIATE(float)
TP_INSTANTIATE(BF16)
#undef TP_INSTANTIATE

extern "C" __attribute__((visibility("default"))) int tidepool_cuda_token_logprob(
    const TokenLogProbArgs* args, void* stream) {
  const TokenLogProbArgs& a = *args;
  if (a.n == 0) return 0;
  if (!(a.temperature > 0.0F)) return static_cast<int>(cudaErrorInvalidValue);
  const LogProbOut out{a.logprobs, a.entropy, nullptr};
  switch (a.type) {
    case ElementType::kFloat32:
      return Forward(static_cast<const float*>(a.logits), a.row_stride, a.ids, a.n, a.vocab,
                     1.0F / a.temperature, out, stream);
    case ElementType::kBFloat16:
      return Forward(static_cast<const BF16*>(a.logits), a.row_stride, a.ids, a.n, a.vocab,
                     1.0F / a.temperature, out, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace tidepool::cuda
