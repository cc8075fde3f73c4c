// Products of the experts: rows that chose the same expert stand together, each group is multiplied by its
// own matrix, in one launch. One group is the plain product.
//
//   y = x w^T,  dx = dy w,  dw += dy^T x      for the rows [begin[g], begin[g + 1]) and the matrix g
//
// No sum is split: a block adds the terms of its 64 x 64 elements in order, 16 a step, so a row of y or dx is
// a function of that row and the matrix, wherever it stands; dw adds its group's rows in order. In bfloat16
// the products run on tensor cores with the next step's operands under way; float32 and sizes that are no
// multiple of 8 take a plain tile.
//
// Multiply is the same with one group: the product of whole batches where a row must have the same bits in
// every batch (CudaDevice).
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

enum class Product { kForward, kInput, kWeight };
template <typename Args>
constexpr Product kProduct = Product::kForward;
template <typename T>
constexpr Product kProduct<device::GroupedMultiplyBackArgs<T>> = Product::kInput;
template <typename T>
constexpr Product kProduct<device::GroupedMultiplyBackWeightArgs<T>> = Product::kWeight;

// One product as c[i, j] = sum over l of left(i, l) right(l, j), all for one group.
struct Part {
  int64_t i_begin, i_end, j_end, l_begin, l_end;
};

constexpr int kSide = 64;  // of a block's tile
// Blocks along i: groups' rows are cut into tiles apart, so at most one more a group.
template <typename Args>
__host__ __device__ int64_t TilesAlong(const Args& a, int64_t side) {
  return kProduct<Args> == Product::kWeight ? CeilDiv(a.n, side) : CeilDiv(a.rows, side) + a.groups;
}

// The block's tile of rows: its group, and the rows of it. False: past the last.
template <typename Args>
__device__ inline bool FindPart(const Args& a, int64_t side, int64_t* group, Part* part) {
  constexpr Product kWhich = kProduct<Args>;
  if (a.begin == nullptr) {  // of Multiply
    *group = 0;
    *part = {static_cast<int64_t>(blockIdx.x) * side, a.rows, a.n, 0, a.k};
    return part->i_begin < part->i_end;
  }
  const Global<const int32_t> begin = View(a.begin);
  if (kWhich == Product::kWeight) {
    *group = blockIdx.z;
    part->i_begin = static_cast<int64_t>(blockIdx.x) * side;
    part->i_end = a.n;
    part->j_end = a.k;
    part->l_begin = begin[*group];
    part->l_end = begin[*group + 1];
    return part->l_begin < part->l_end;
  }
  int64_t tile = blockIdx.x, g = 0, low = begin[0];
  for (; g < a.groups; ++g) {
    const int64_t high = begin[g + 1], tiles = CeilDiv(high - low, side);
    if (tile < tiles) break;
    tile -= tiles;
    low = high;
  }
  if (g == a.groups) return false;
  *group = g;
  part->i_begin = low + tile * side;
  part->i_end = begin[g + 1];
  part->j_end = kWhich == Product::kForward ? a.n : a.k;
  part->l_begin = 0;
  part->l_end = kWhich == Product::kForward ? a.k : a.n;
  return true;
}

template <typename Args>
__device__ inline auto MatrixOf(const Args& a, int64_t group) {
  return View(a.w) + group * a.n * a.k;
}

// Where the rows of a product that gives rows go.
template <typename Args>
__device__ inline auto RowsOut(const Args& a) {
  if constexpr (kProduct<Args> == Product::kForward) {
    return View(a.y);
  } else {
    return View(a.dx);
  }
}

constexpr int kGroupedThreads = 128;
constexpr int kDepth = 32;  // terms of a step
constexpr int kLong = kSide + 8,
              kShort = kDepth + 8;  // rows of tiles in shared memory: banks as in attention_tiles.h
constexpr int kTileElements = kSide * kShort;  // >= kDepth * kLong

// A tile of kRows x kColumns from (row, column) on, zeros past the ends.
template <int kRows, int kColumns>
__device__ inline void LoadTile(Shared<BF16> to, Global<const BF16> from, int64_t width, int64_t row,
                                int64_t row_end, int64_t column, int64_t column_end) {
  constexpr int kChunks = kColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kGroupedThreads) {
    const int64_t r = row + i / kChunks, c = column + i % kChunks * 8;
    const bool there = r < row_end && c < column_end;
    CopyAsync16(to + i / kChunks * (kColumns + 8) + i % kChunks * 8, from + (there ? r * width + c : 0),
                there);
  }
}

template <typename Args>
__global__ void __launch_bounds__(kGroupedThreads) GroupedTilesKernel(Args a) {
  constexpr Product kWhich = kProduct<Args>;
  TP_SHARED(BF16, left, 2 * kTileElements);
  TP_SHARED(BF16, right, 2 * kTileElements);
  int64_t group = 0;
  Part part;
  if (!FindPart(a, kSide, &group, &part)) return;
  const int64_t j0 = static_cast<int64_t>(blockIdx.y) * kSide;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto load = [&](int64_t step) {
    const int64_t l = part.l_begin + step * kDepth;
    const Shared<BF16> to_left = left + step % 2 * kTileElements, to_right = right + step % 2 * kTileElements;
    if (l < part.l_end) {
      if constexpr (kWhich == Product::kForward) {
        LoadTile<kSide, kDepth>(to_left, View(a.x), a.k, part.i_begin, part.i_end, l, part.l_end);
        LoadTile<kSide, kDepth>(to_right, MatrixOf(a, group), a.k, j0, part.j_end, l, part.l_end);
      } else if constexpr (kWhich == Product::kInput) {
        LoadTile<kSide, kDepth>(to_left, View(a.dy), a.n, part.i_begin, part.i_end, l, part.l_end);
        LoadTile<kDepth, kSide>(to_right, MatrixOf(a, group), a.k, l, part.l_end, j0, part.j_end);
      } else {
        LoadTile<kDepth, kSide>(to_left, View(a.dy), a.n, l, part.l_end, part.i_begin, part.i_end);
        LoadTile<kDepth, kSide>(to_right, View(a.x), a.k, l, part.l_end, j0, part.j_end);
      }
    }
    CopyAsyncCommit();
  };
  float c[kSide / 8][4] = {};
  const int64_t steps = CeilDiv<int64_t>(part.l_end - part.l_begin, kDepth);
  load(0);
  for (int64_t step = 0; step < steps; ++step) {
    load(step + 1);
    CopyAsyncWait<1>();
    __syncthreads();
    const Shared<BF16> lhs = left + step % 2 * kTileElements, rhs = right + step % 2 * kTileElements;
#pragma unroll
    for (int l = 0; l < kDepth; l += 16) {
      uint32_t rows[4];
      if constexpr (kWhich == Product::kWeight) {  // lies as [l, i]
        LoadMatrix4Transposed(lhs + (l + lane % 8 + lane / 16 * 8) * kLong + warp * 16 + lane / 8 % 2 * 8,
                              rows);
      } else {
        LoadMatrix4(lhs + (warp * 16 + lane % 16) * kShort + l + lane / 16 * 8, rows);
      }
#pragma unroll
      for (int j = 0; j < kSide; j += 16) {
        uint32_t columns[4];
        if constexpr (kWhich == Product::kForward) {  // lies as [j, l]
          LoadMatrix4(rhs + (j + lane % 8 + lane / 16 * 8) * kShort + l + lane / 8 % 2 * 8, columns);
        } else {
          LoadMatrix4Transposed(rhs + (l + lane % 16) * kLong + j + lane / 16 * 8, columns);
        }
        MultiplyTile(c[j / 8], rows, columns[0], columns[1]);
        MultiplyTile(c[j / 8 + 1], rows, columns[2], columns[3]);
      }
    }
    __syncthreads();  // the step after the next one may overwrite these
  }
  CopyAsyncWait<0>();
#pragma unroll
  for (int n = 0; n < kSide / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t i = part.i_begin + warp * 16 + lane / 4 + 8 * h, j = j0 + n * 8 + 2 * (lane % 4);
      if (i >= part.i_end || j >= part.j_end) continue;  // j_end is a multiple of 8
      if constexpr (kWhich == Product::kWeight) {
        const Global<float> to = View(a.dw) + (group * a.n + i) * a.k + j;
        Put2(to, 0, float{to[0]} + c[n][2 * h], float{to[1]} + c[n][2 * h + 1]);
      } else {
        Put2(RowsOut(a) + i * part.j_end, j, c[n][2 * h], c[n][2 * h + 1]);
      }
    }
  }
}

constexpr int kPlainSide = 16;  // 256 threads, an element each

template <typename Args>
__global__ void __launch_bounds__(kPlainSide* kPlainSide) GroupedPlainKernel(Args a) {
  constexpr Product kWhich = kProduct<Args>;
  TP_SHARED(float, left, kPlainSide*(kPlainSide + 1));   // [i, l]
  TP_SHARED(float, right, kPlainSide*(kPlainSide + 1));  // [l, j]
  int64_t group = 0;
  Part part;
  if (!FindPart(a, kPlainSide, &group, &part)) return;
  const int row = static_cast<int>(threadIdx.x) / kPlainSide,
            column = static_cast<int>(threadIdx.x) % kPlainSide;
  const int64_t i = part.i_begin + row, j = static_cast<int64_t>(blockIdx.y) * kPlainSide + column;
  float sum = 0.0F;
  for (int64_t l0 = part.l_begin; l0 < part.l_end; l0 += kPlainSide) {
    const int64_t l_left = l0 + column, l_right = l0 + row;
    float x = 0.0F, y = 0.0F;
    if (i < part.i_end && l_left < part.l_end) {
      if constexpr (kWhich == Product::kForward) x = Get(View(a.x), i * a.k + l_left);
      if constexpr (kWhich == Product::kInput) x = Get(View(a.dy), i * a.n + l_left);
      if constexpr (kWhich == Product::kWeight) x = Get(View(a.dy), l_left * a.n + i);
    }
    if (j < part.j_end && l_right < part.l_end) {
      if constexpr (kWhich == Product::kForward) y = Get(MatrixOf(a, group), j * a.k + l_right);
      if constexpr (kWhich == Product::kInput) y = Get(MatrixOf(a, group), l_right * a.k + j);
      if constexpr (kWhich == Product::kWeight) y = Get(View(a.x), l_right * a.k + j);
    }
    left[row * (kPlainSide + 1) + column] = x;
    right[row * (kPlainSide + 1) + column] = y;
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kPlainSide; ++l) {
      sum += left[row * (kPlainSide + 1) + l] * right[l * (kPlainSide + 1) + column];
    }
    __syncthreads();
  }
  if (i >= part.i_end || j >= part.j_end) return;
  if constexpr (kWhich == Product::kWeight) {
    View(a.dw)[(group * a.n + i) * a.k + j] += sum;
  } else {
    Put(RowsOut(a), i * part.j_end + j, sum);
  }
}

// What the tensor cores read has to lie on 16 bytes.
template <typename Args>
bool InputsOn16Bytes(const Args& a) {
  if constexpr (kProduct<Args> == Product::kForward) {
    return On16Bytes(a.x) && On16Bytes(a.w);
  } else if constexpr (kProduct<Args> == Product::kInput) {
    return On16Bytes(a.dy) && On16Bytes(a.w);
  } else {
    return On16Bytes(a.dy) && On16Bytes(a.x);
  }
}

template <template <typename> typename ArgsOf, typename T>
int GroupedProduct(const char* name, const ArgsOf<T>& a, Launcher& launcher) {
  constexpr Product kWhich = kProduct<ArgsOf<T>>;
  if (a.groups < 1 || a.rows < 0 || a.n < 1 || a.k < 1) return static_cast<int>(cudaErrorInvalidValue);
  const int64_t columns = kWhich == Product::kForward ? a.n : a.k,
                groups = kWhich == Product::kWeight ? a.groups : 1;
  if constexpr (sizeof(T) == 2) {
    if (a.n % 8 == 0 && a.k % 8 == 0 && InputsOn16Bytes(a)) {
      return Launch({.name = name,
                     .x = TilesAlong(a, kSide),
                     .y = CeilDiv<int64_t>(columns, kSide),
                     .z = groups,
                     .threads = kGroupedThreads},
                    launcher.stream(), GroupedTilesKernel<ArgsOf<T>>, a);
    }
  }
  return Launch({.name = name,
                 .x = TilesAlong(a, kPlainSide),
                 .y = CeilDiv<int64_t>(columns, kPlainSide),
                 .z = groups,
                 .threads = kPlainSide * kPlainSide},
                launcher.stream(), GroupedPlainKernel<ArgsOf<T>>, a);
}

}  // namespace

template <typename T>
int GroupedMultiply(const device::GroupedMultiplyArgs<T>& a, Launcher& launcher) {
  return GroupedProduct("grouped_multiply", a, launcher);
}
template <typename T>
int Multiply(const device::MultiplyArgs<T>& a, Launcher& launcher) {
  if (a.strips) return static_cast<int>(cudaErrorInvalidValue);
  return GroupedProduct("multiply",
                        device::GroupedMultiplyArgs<T>{
                            .groups = 1, .rows = a.rows, .n = a.n, .k = a.k, .x = a.x, .w = a.w, .y = a.y},
                        launcher);
}
template <typename T>
int GroupedMultiplyBack(const device::GroupedMultiplyBackArgs<T>& a, Launcher& launcher) {
  return GroupedProduct("grouped_multiply_back", a, launcher);
}
template <typename T>
int GroupedMultiplyBackWeight(const device::GroupedMultiplyBackWeightArgs<T>& a, Launcher& launcher) {
  return GroupedProduct("grouped_multiply_back_weight", a, launcher);
}

TP_INSTANTIATE(Multiply)
TP_INSTANTIATE(GroupedMultiply)
TP_INSTANTIATE(GroupedMultiplyBack)
TP_INSTANTIATE(GroupedMultiplyBackWeight)

}  // namespace tidepool::cuda
