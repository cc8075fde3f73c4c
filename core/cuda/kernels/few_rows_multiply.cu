// y = x w^T of few rows: bound by the reading of w.
//
// w is the right operand of tensor core tiles of 8 of its rows, x the left one of 8 or 16 rows, so w goes
// from memory to registers once, 16 bytes a lane, with no stop in shared memory. Which terms a tile takes in
// one step is the same for both operands, so their order inside a step may be the memory's. `split` warps
// share the terms of a tile, 64 at a time in turn; their sums are added up from the first to the last, so a
// row has the same bits beside any others of the same kernel.
//
// A block reads its part of w before the kernel before has ended (WaitForKernelBefore): w is nobody's result.
#include <type_traits>

#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/few_rows_multiply.h"
#include "core/cuda/kernels/glu.h"

namespace tidepool::cuda {
namespace {

constexpr int kStepTerms = 64;  // of a warp's step: 128 bytes of a row of w
constexpr int kTileRows = 8;    // of w

// kRows: of x that a block takes, 8, 16 or 32; 8 are brought to shared memory at once, as a warp would
// otherwise wait for its part in every step, of more there may be too much. kMatrices: 2 where a block has
// the gate's rows of w and the same rows of the other half.
template <int kRows, int kWarps, int kMatrices>
struct FewRowsShape {
  static constexpr int kTiles = kRows <= 16 ? 1 : kRows / 16;  // left operands
  static constexpr int kHalves = kRows == 8 ? 1 : 2;           // of one, that are something
  // Steps whose part of w is under way. Few registers leave room for the block of the next kernel, which
  // reads its own part meanwhile.
  static constexpr int kAhead = (kWarps == 16 ? 2 : kWarps == 4 ? 6 : 4) / kMatrices;
  static constexpr int kBlocks = kRows > 8 ? 1 : kWarps == 16 ? 2 : 20 / kWarps;  // on a multiprocessor
  static constexpr bool kStaged = kRows == 8;
  static constexpr int kPad = 32;  // elements after a row in shared memory: neighbours lie in other banks
  static constexpr int kSums = kMatrices * kTiles * 2 * kHalves;
};

// Normalises the rows of x into shared memory; the sum with `add` is written by the first block. Warps share
// the rows evenly, and a lane holds its part of one in registers: 8 elements.
template <int kWarps>
struct NormRows {
  static constexpr int64_t Room(int64_t rows) {  // elements of a row that there is room for
    int64_t warps = kWarps;
    while (warps > 1 && warps * rows > kWarps) warps /= 2;
    return warps * rows > kWarps ? 0 : warps * 32 * 8;
  }
  __device__ explicit NormRows(const device::RmsNormArgs<BF16>& a) {
    warps = kWarps;
    while (warps * static_cast<int>(a.rows) > kWarps) warps /= 2;
    const int thread = static_cast<int>(threadIdx.x);
    row = thread / (32 * warps);
    first = thread % (32 * warps) * 8;
    mine = row < static_cast<int>(a.rows);
    if (mine && first < static_cast<int>(a.d)) GetWords4(View(a.weight), first, weight);
  }
  // sums: kWarps values. Ends with a barrier.
  __device__ void Run(const device::RmsNormArgs<BF16>& a, Shared<BF16> out, int64_t stride,
                      Shared<float> sums) {
    const int64_t at = row * a.d;
    const bool there = mine && first < static_cast<int>(a.d);
    float v[8];
    float squares = 0.0F;
    if (there) {
      Get8(View(a.x), at + first, v);
      if (a.add != nullptr) {
        float w[8];
        Get8(View(a.add), at + first, w);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = RoundedToBF16(v[j] + w[j]);  // what the norm sees
        if (blockIdx.x == 0) Put8(View(a.x_out), at + first, v);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
    }
    squares = WarpSum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0F;
    for (int w = 0; mine && w < warps; ++w) squares += sums[row * warps + w];
    const float rstd = 1.0F / sqrtf(squares / static_cast<float>(a.d) + a.eps);
    if (there) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[2 * j] = v[2 * j] * rstd * __uint_as_float(weight[j] << 16);
        v[2 * j + 1] = v[2 * j + 1] * rstd * __uint_as_float(weight[j] & 0xFFFF0000U);
      }
      Put8(out, row * stride + first, v);
    }
    __syncthreads();
  }
  int warps, row, first;  // warps that share a row
  bool mine;
  uint32_t weight[4];
};
struct NoNorm {
  __device__ explicit NoNorm(const device::RmsNormArgs<BF16>&) {}
};
// The rows as they are.
template <int kWarps>
struct CopyRows {
  __device__ static void Run(const device::MultiplyArgs<BF16>& a, Shared<BF16> out, int64_t stride) {
    const int chunks = static_cast<int>(a.k / 8);
    for (int row = 0; row < static_cast<int>(a.rows); ++row) {
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < chunks; i += kWarps * 32) {
        CopyAsync16(out + row * stride + i * 8, View(a.x) + row * a.k + i * 8, true);
      }
    }
    CopyAsyncCommit();
    CopyAsyncWait<0>();
    __syncthreads();
  }
};

template <int kRows, int kWarps, int kMatrices, bool kNorm>
__global__ void __launch_bounds__(kWarps * 32, FewRowsShape<kRows, kWarps, kMatrices>::kBlocks)
    FewRowsKernel(device::FusedMultiplyArgs<BF16> f, int split) {
  using Shape = FewRowsShape<kRows, kWarps, kMatrices>;
  constexpr int kTiles = Shape::kTiles, kHalves = Shape::kHalves, kAhead = Shape::kAhead;
  TP_DYNAMIC_SHARED(bytes);
  const device::MultiplyArgs<BF16>& a = f.multiply;
  const int n_all = static_cast<int>(kMatrices == 2 ? f.glu.ff : a.n), k_all = static_cast<int>(a.k),
            x_rows = static_cast<int>(a.rows);
  const Shared<float> sums = Carve<float>(bytes, 0, kWarps * 32 * Shape::kSums);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            g = lane / 4, t = lane % 4;
  const int part = warp % split, stride = split * kStepTerms;
  const int n0 = (static_cast<int>(blockIdx.x) * (kWarps / split) + warp / split) * kTileRows;
  const bool has_row = n0 + g < n_all;
  // Of the lane's first 8 terms in its first step.
  const int k0 = part * kStepTerms + t * 8;
  const Global<const BF16> w = View(a.w) + int64_t{has_row ? n0 + g : 0} * k_all;
  uint32_t ahead[kAhead][kMatrices][2][4];
  const auto load = [&](int k, uint32_t(&to)[kMatrices][2][4]) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (has_row && k + h * 32 < k_all) {
          GetWords4(w, int64_t{m} * n_all * k_all + k + h * 32, to[m][h]);
        } else {
          to[m][h][0] = to[m][h][1] = to[m][h][2] = to[m][h][3] = 0;
        }
      }
    }
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s) load(k0 + s * stride, ahead[s]);
  std::conditional_t<kNorm, NormRows<kWarps>, NoNorm> norm(f.norm);
  LetKernelAfterStart();
  WaitForKernelBefore();

  const int x_stride = k_all + Shape::kPad;
  const Shared<BF16> staged =
      Carve<BF16>(bytes, kWarps * 32 * Shape::kSums * 4, Shape::kStaged ? a.rows * x_stride : 0);
  if constexpr (kNorm) {
    norm.Run(f.norm, staged, x_stride, sums);
  } else if constexpr (Shape::kStaged) {
    CopyRows<kWarps>::Run(a, staged, x_stride);
  }
  const Global<const BF16> x = View(a.x);
  float c[kMatrices][kTiles][4] = {};
  for (int k1 = k0; k1 - t * 8 < k_all; k1 += kAhead * stride) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const int k = k1 + s * stride;
      if (k - t * 8 >= k_all) break;  // of all lanes
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t rows[2][2][4] = {};  // the row of the lane and the eighth after it, both halves of the step
#pragma unroll
        for (int r = 0; r < kHalves; ++r) {
          const int row = i * 16 + r * 8 + g;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (row >= x_rows || k + h * 32 >= k_all) continue;
            if constexpr (Shape::kStaged) {
              GetWords4(staged, row * x_stride + k + h * 32, rows[r][h]);
            } else {
              GetWords4(x, int64_t{row} * k_all + k + h * 32, rows[r][h]);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
              const uint32_t left[4] = {rows[0][h][j], rows[1][h][j], rows[0][h][j + 1], rows[1][h][j + 1]};
              MultiplyTile(c[m][i], left, ahead[s][m][h][j], ahead[s][m][h][j + 1]);
            }
          }
        }
      }
      load(k + kAhead * stride, ahead[s]);
    }
  }
  // c[m][i][0], [1]: row g, columns 2t and 2t + 1 of the tile; [2], [3]: row g + 8.
  if (split > 1) {
    int at = 0;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kHalves; ++j) sums[(warp * Shape::kSums + at++) * 32 + lane] = c[m][i][j];
      }
    }
    __syncthreads();
    if (part != 0) return;
    at = 0;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kHalves; ++j, ++at) {
          for (int p = 1; p < split; ++p) c[m][i][j] += sums[((warp + p) * Shape::kSums + at) * 32 + lane];
        }
      }
    }
  }
  const int n = n0 + 2 * t;
  if (n >= n_all) return;
  const Global<BF16> y = View(kMatrices == 2 ? f.glu.act : a.y);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < kHalves; ++r) {
      const int row = i * 16 + r * 8 + g;
      if (row >= x_rows) continue;
      float v[2] = {c[0][i][2 * r], c[0][i][2 * r + 1]};
      if constexpr (kMatrices == 2) {
        // Rounded as they are where they go through memory.
#pragma unroll
        for (int j = 0; j < 2; ++j) v[j] = Gated(RoundedToBF16(v[j]), RoundedToBF16(c[1][i][2 * r + j]));
      }
      Put2(y, int64_t{row} * n_all + n, v[0], v[1]);
    }
  }
}

// Warps that share a tile's terms: enough that all of them fill the device, and two steps or more for each.
int Split(int64_t tiles, int64_t k) {
  const int64_t steps = CeilDiv<int64_t>(k, kStepTerms);
  int split = steps >= 32 ? 4 : 1;
  while (split < 16 && tiles * split < 2000 && 4 * steps >= 7 * 2 * split) split *= 2;
  return split;
}

template <int kRows, int kWarps, int kMatrices, bool kNorm>
int LaunchFewRows(const device::FusedMultiplyArgs<BF16>& f, int split, Stream stream) {
  using Shape = FewRowsShape<kRows, kWarps, kMatrices>;
  const device::MultiplyArgs<BF16>& a = f.multiply;
  const int64_t tiles = CeilDiv<int64_t>(kMatrices == 2 ? f.glu.ff : a.n, kTileRows);
  return Launch({.name = "few_rows_multiply",
                 .x = CeilDiv<int64_t>(tiles, kWarps / split),
                 .threads = kWarps * 32,
                 .shared_bytes = static_cast<int>(int64_t{kWarps} * 32 * Shape::kSums * 4 +
                                                  (Shape::kStaged ? a.rows * (a.k + Shape::kPad) * 2 : 0)),
                 .early = true},
                stream, FewRowsKernel<kRows, kWarps, kMatrices, kNorm>, f, split);
}
// Small blocks, so that all multiprocessors have about as many.
template <int kMatrices, bool kNorm>
int ChooseWarps(const device::FusedMultiplyArgs<BF16>& f, int split, Stream stream) {
  if (split > 8) return LaunchFewRows<8, 16, kMatrices, kNorm>(f, split, stream);
  return split > 4 ? LaunchFewRows<8, 8, kMatrices, kNorm>(f, split, stream)
                   : LaunchFewRows<8, 4, kMatrices, kNorm>(f, split, stream);
}
template <int kMatrices>
int ChooseRows(const device::FusedMultiplyArgs<BF16>& f, Stream stream) {
  const int64_t rows = f.multiply.rows;
  const int split =
      Split(CeilDiv<int64_t>(kMatrices == 2 ? f.glu.ff : f.multiply.n, kTileRows), f.multiply.k);
  if (rows > 16) return LaunchFewRows<32, 8, kMatrices, false>(f, split < 8 ? split : 8, stream);
  if (rows > 8) return LaunchFewRows<16, 8, kMatrices, false>(f, split < 8 ? split : 8, stream);
  if (f.norm.rows == 0) return ChooseWarps<kMatrices, false>(f, split, stream);
  if (NormRows<4>::Room(rows) >= f.norm.d) return ChooseWarps<kMatrices, true>(f, split, stream);
  return ChooseWarps<kMatrices, true>(f, split < 8 ? 8 : split, stream);
}

}  // namespace

bool TakesFewRows(const device::MultiplyArgs<BF16>& a) {
  // Larger matrices take cuBLAS as long, and more rows longer here.
  constexpr int64_t kElementsMax = 26 << 20, kStagedMax = 96 << 10, kSumsMax = 16 * 32 * 4 * 4;
  const int64_t staged = a.rows > 8 ? 0 : a.rows * (a.k + 32) * 2;
  return a.rows >= 1 && a.rows <= kFewRowsMax && !a.strips && Wide(a.k, a.x, a.w) && a.n % 2 == 0 &&
         On16Bytes(a.y) && (a.n * a.k <= kElementsMax || (a.rows <= 2 && a.n >= 4 * a.k && a.n <= 65536)) &&
         staged <= kStagedMax && staged + kSumsMax <= SharedMax();
}
bool TakesGate(const device::SwiGluArgs<BF16>& glu) { return glu.ff % 2 == 0 && On16Bytes(glu.act); }
bool TakesNorm(const device::RmsNormArgs<BF16>& norm, const device::MultiplyArgs<BF16>& a) {
  return TakesFewRows(a) && norm.rstd == nullptr && a.k <= NormRows<8>::Room(a.rows) &&
         Wide(norm.d, norm.x, norm.add, norm.x_out, norm.weight);
}
int FewRowsFused(const device::FusedMultiplyArgs<BF16>& a, Stream stream) {
  return a.glu.rows > 0 ? ChooseRows<2>(a, stream) : ChooseRows<1>(a, stream);
}

}  // namespace tidepool::cuda
