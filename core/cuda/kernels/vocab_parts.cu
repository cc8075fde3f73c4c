// What sampler and log-probability begin with: the largest logit of each row, then the masses of its tiles.
#include "core/cuda/kernels/vocab_parts.h"

namespace tidepool::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kTileThreads = 256;
constexpr int kBlockTiles = kTileThreads / 16;

// source: the rows of logits that are taken; null: all of them, in order.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    VocabMaxKernel(const T* logits, const int32_t* source, int64_t vocab, bool wide, VocabParts v) {
  TP_SHARED(float, scratch, kMaxThreads / 32);
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, from = source == nullptr ? r : int64_t{View(source)[r]};
  const Global<const T> row = View(logits) + from * vocab;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kPartTokens,
                end = vocab < begin + kPartTokens ? vocab : begin + kPartTokens;
  float max = -INFINITY;
  bool bad = false;
#pragma unroll 4
  for (int64_t c = begin + static_cast<int64_t>(threadIdx.x) * 8; c < end; c += kMaxThreads * 8) {
    float z[8];
    GetChunk(row, c, end, wide, z);
#pragma unroll
    for (int l = 0; l < 8; ++l) {
      if (c + l >= end) continue;
      max = fmaxf(max, z[l]);
      bad = bad || (__float_as_uint(z[l]) & 0x7F800000U) == 0x7F800000U;
    }
  }
  bad = __syncthreads_or(bad ? 1 : 0) != 0;
  max = BlockMax<kMaxThreads>(max, scratch);
  if (threadIdx.x != 0) return;
  View(v.max)[r * v.parts + blockIdx.y] = max;
  View(v.not_finite)[r * v.parts + blockIdx.y] = bad ? 1U : 0U;
}

// how: the scale of each row; null: `scale` for all.
template <bool kEntropy, typename T>
__global__ void __launch_bounds__(kTileThreads)
    VocabTilesKernel(const T* logits, const int32_t* source, const device::SampleRow* how, float scale,
                     int64_t vocab, VocabParts v) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, from = source == nullptr ? r : int64_t{View(source)[r]};
  bool finite = false;
  const float max = MaxOfParts(v, r, &finite);
  if (how != nullptr) scale = ScaleOf(View(how)[r]);
  const int64_t t = static_cast<int64_t>(blockIdx.y) * kBlockTiles + threadIdx.x / 16;
  float sum = 0.0F, weighted = 0.0F;
  SumTile<kEntropy>(View(logits) + from * vocab, vocab, t, max, scale, -INFINITY, &sum, &weighted);
  if (threadIdx.x % 16 != 0 || t >= v.tiles) return;
  View(v.sum)[r * v.tiles + t] = sum;
  if (kEntropy) View(v.weighted)[r * v.tiles + t] = weighted;
}

}  // namespace

template <typename T>
int SumVocab(const VocabRows<T>& rows, Launcher& launcher, VocabParts* out) {
  VocabParts v{.parts = CeilDiv<int64_t>(rows.vocab, kPartTokens),
               .tiles = CeilDiv<int64_t>(rows.vocab, kVocabTile)};
  const int64_t n_parts = rows.rows * v.parts, n_tiles = rows.rows * v.tiles;
  v.max = static_cast<float*>(launcher.Scratch((2 * n_parts + (rows.entropy ? 2 : 1) * n_tiles) *
                                               static_cast<int64_t>(sizeof(float))));
  v.not_finite = reinterpret_cast<uint32_t*>(v.max + n_parts);
  v.sum = v.max + 2 * n_parts;
  if (rows.entropy) v.weighted = v.sum + n_tiles;
  *out = v;
  const bool wide = Wide(rows.vocab, rows.logits);
  if (const int code =
          Launch({.name = "vocab_max", .x = rows.rows, .y = v.parts, .threads = kMaxThreads, .early = true},
                 launcher.stream(), VocabMaxKernel<T>, rows.logits, rows.source, rows.vocab, wide, v);
      code != 0) {
    return code;
  }
  const Grid grid{.name = "vocab_tiles",
                  .x = rows.rows,
                  .y = CeilDiv<int64_t>(v.tiles, kBlockTiles),
                  .threads = kTileThreads,
                  .early = true};
  return rows.entropy ? Launch(grid, launcher.stream(), VocabTilesKernel<true, T>, rows.logits, rows.source,
                               rows.how, rows.scale, rows.vocab, v)
                      : Launch(grid, launcher.stream(), VocabTilesKernel<false, T>, rows.logits, rows.source,
                               rows.how, rows.scale, rows.vocab, v);
}
template int SumVocab<float>(const VocabRows<float>&, Launcher&, VocabParts*);
template int SumVocab<BF16>(const VocabRows<BF16>&, Launcher&, VocabParts*);

}  // namespace tidepool::cuda
