// A chain of y = x w^T of few rows: bound by the reading of the matrices, which are nobody's results.
//
// A block has some rows of each matrix and reads them in steps of 8 rows by 128 terms. Its warps take the
// steps of all products in turn. Each lane copies to shared memory what it will multiply itself, kDepth steps
// ahead, so a warp waits for its own copies alone, and the memory is busy while blocks wait for each other
// between two products. The tensor cores take a step as few_rows_multiply.cu has it.
//
// The warps' sums of a tile are added up in one order, and how a matrix is divided depends on the GPU alone,
// so a row has the same bits in every run and beside any others of as many rows: these decide how the sum of
// a norm's squares is divided. Between products all blocks meet at a count in device memory: they have to run
// at once (Grid::together). Two chains that start together on a GPU were not tried.
//
// What takes the time of a product besides its reading, on an H100 at 0.5 billion parameters:
// docs/perf_tried.md.
#include <algorithm>

#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/glu.h"
#include "core/cuda/kernels/product_chain.h"

namespace tidepool::cuda {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kStepTerms = 128, kTileRows = 8;
constexpr int kDepth = 3;  // steps of a warp that are under way
constexpr int kStepElements = kTileRows * kStepTerms;
constexpr int kPad = 32;  // elements after a row of x: neighbours lie in other banks
constexpr int kRingBytes = kDepth * kWarps * kStepElements * 2;

// A product, and how its rows are divided among the blocks: `share` for each, one more for the first `more`.
struct Link {
  device::FusedMultiplyArgs<BF16> f;
  int n = 0, k = 0, share = 0, more = 0, steps = 0;  // steps: of a tile
  int gate = 0;                                      // 1: its rows and the same of the other half in turn
  float of_k = 0.0F;                                 // 1 / k
};
struct Chain {
  Link link[kChainMax];
  int count = 0, rows = 0;
  int rows_bits = 0;  // rows up to the next power of two
  int group = 0;      // tiles whose sums are added up at once
};

// What a block has of a product.
struct Share {
  __device__ explicit Share(const Link& l) {
    const int block = static_cast<int>(blockIdx.x);
    first = block * l.share + (block < l.more ? block : l.more);
    end = first + l.share + (block < l.more ? 1 : 0);
    tiles = CeilDiv(end - first, kTileRows) << l.gate;
  }
  int first, end, tiles;
};
// Copies of a warp in the order of its steps, every kWarps-th of a product, over all products.
class Reader {
 public:
  __device__ Reader(const Chain& chain, Shared<BF16> mine)
      : chain_(chain), to_(mine + static_cast<int>(threadIdx.x) % 32 * 8), share_(chain.link[0]) {
    Begin();
    Find();
  }
  // Into place `at` of the ring; nothing once there are no more. Either way it is one group of copies.
  __device__ void Copy(int at) {
    if (link_ < chain_.count) {
#pragma unroll
      for (int h = 0; h < kStepTerms / 32; ++h) {
        CopyAsync16(to_ + (at * kStepElements + h * 256), w_ + h * 32, there_ && k_ + h * 32 < k_all_);
      }
      w_ = w_ + kWarps * kStepTerms;
      k_ += kWarps * kStepTerms;
      if (k_ >= k_end_) Find();
    }
    CopyAsyncCommit();
  }

 private:
  __device__ void Begin() {
    const Link& l = chain_.link[link_];
    share_ = Share(l);
    tile_ = 0;
    k_all_ = l.k;
    k_end_ = l.steps * kStepTerms;
    k_ = static_cast<int>(threadIdx.x) / 32 * kStepTerms + static_cast<int>(threadIdx.x) % 4 * 8;
  }
  // To the tile that k_ lies in, of this product or one after it.
  __device__ void Find() {
    for (;;) {
      for (; k_ >= k_end_; k_ -= k_end_) ++tile_;
      if (tile_ < share_.tiles) break;
      if (++link_ == chain_.count) return;
      Begin();
    }
    const Link& l = chain_.link[link_];
    const int row = share_.first + (tile_ >> l.gate) * kTileRows + static_cast<int>(threadIdx.x) % 32 / 4;
    there_ = row < share_.end;
    w_ = View(l.f.multiply.w) + (int64_t{row + ((tile_ & l.gate) != 0 ? l.n : 0)} * l.k + k_);
  }

  const Chain& chain_;
  const Shared<BF16> to_;
  int link_ = 0;
  Share share_;
  int tile_ = 0, k_ = 0, k_all_ = 0, k_end_ = 0;  // k_: of the lane's first 8 terms
  bool there_ = false;
  Global<const BF16> w_;
};

// x of a product in shared memory. Where it has a norm: times the norm's weights; that the sum of its squares
// is known can wait for the end of the product. The sum with `add` is written by the first block. Warps share
// the rows evenly. What other blocks have written is read past the first cache, which may hold what was there
// before.
class Rows {
 public:
  // Reads the weights of the norm, which are nobody's results.
  __device__ Rows(const Chain& chain, const Link& l) : rows_(chain.rows), warps_(kWarps >> chain.rows_bits) {
    row_ = static_cast<int>(threadIdx.x) >> (9 - chain.rows_bits);
    first_ = (static_cast<int>(threadIdx.x) & (32 * warps_ - 1)) * 8;
    if (l.f.norm.rows > 0 && first_ < l.k) GetWords4(View(l.f.norm.weight), first_, weight_);
  }
  // Ends with a barrier. Zeros follow a row's terms up to the end of its last step.
  __device__ void Bring(const Link& l, Shared<BF16> out, Shared<float> squares) {
    const device::FusedMultiplyArgs<BF16>& f = l.f;
    const int k = l.k, k_end = l.steps * kStepTerms, step = 32 * warps_ * 8;
    const Shared<BF16> row = out + row_ * (k_end + kPad);
    const bool mine = row_ < rows_;
    if (f.norm.rows == 0) {
      for (int i = first_; mine && i < k_end; i += step) {
        uint32_t words[4] = {};
        if (i < k) GetWords4Fresh(View(f.multiply.x), int64_t{row_} * k + i, words);
        PutWords4(row, i, words);
      }
      __syncthreads();
      return;
    }
    float sum = 0.0F;
    for (int i = first_; mine && i < k_end; i += step) {
      const int64_t at = int64_t{row_} * k + i;
      uint32_t words[4] = {}, add[4];
      if (i < k) {
        GetWords4Fresh(View(f.norm.x), at, words);
        if (f.norm.add != nullptr) GetWords4Fresh(View(f.norm.add), at, add);
      }
      float v[8], weight[8];
      Unpack(words, v);
      if (i < k && f.norm.add != nullptr) {
        float w[8];
        Unpack(add, w);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = RoundedToBF16(v[j] + w[j]);  // what the norm sees
        if (blockIdx.x == 0) Put8(View(f.norm.x_out), at, v);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += v[j] * v[j];
      if (i > first_ && i < k) GetWords4(View(f.norm.weight), i, weight_);
      Unpack(weight_, weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] *= weight[j];
      Put8(row, i, v);
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) squares[static_cast<int>(threadIdx.x) / 32] = sum;
    __syncthreads();
  }

 private:
  __device__ static void Unpack(const uint32_t (&words)[4], float (&v)[8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[2 * j] = __uint_as_float(words[j] << 16);
      v[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000U);
    }
  }
  int rows_, warps_, row_, first_;  // warps that share a row
  uint32_t weight_[4] = {};
};

// 88 registers: so many that a block of the attention after it, with heads of 64, finds room beside it.
__global__ void __maxnreg__(88) ProductChainKernel(const __grid_constant__ Chain chain, uint64_t* meetings) {
  TP_DYNAMIC_SHARED(bytes);
  TP_SHARED(float, squares, kWarps);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
            t = lane % 4, rows = chain.rows, group = chain.group;
  const int values = rows * kTileRows;  // of a warp's sum of a tile
  const Shared<BF16> of_warp = Carve<BF16>(bytes, warp * kDepth * kStepElements * 2, kDepth * kStepElements),
                     mine = of_warp + lane * 8;
  const Shared<float> sums = Carve<float>(bytes, kRingBytes, 2 * group * kWarps * values);
  Reader reader(chain, of_warp);
#pragma unroll 1
  for (int s = 0; s < kDepth; ++s) reader.Copy(s);
  int at = 0;  // in the ring: the oldest step
  LetKernelAfterStart();
  TP_SHARED(uint64_t, met, 1);  // arrivals when all blocks have met; of the first thread
#pragma unroll 1
  for (int p = 0; p < chain.count; ++p) {
    const Link& l = chain.link[p];
    const Share share(l);
    Rows x(chain, l);
    if (p == 0) {
      WaitForKernelBefore();
      if (thread == 0 && chain.count > 1) met[0] = Arrivals(View(meetings) + 1);
    } else {
      if (thread == 0) {
        met[0] += gridDim.x;
        AwaitArrivals(View(meetings), met[0]);
      }
      __syncthreads();
    }
    const int k_end = l.steps * kStepTerms;
    const Shared<BF16> staged =
        Carve<BF16>(bytes, kRingBytes + 2 * group * kWarps * values * 4, rows * (k_end + kPad));
    x.Bring(l, staged, squares);

    const Global<BF16> y = View(l.gate != 0 ? l.f.glu.act : l.f.multiply.y);
    // What a lane has no row for is multiplied as if it were of the first one, and not used.
    const Shared<BF16> left_row = staged + ((g < rows ? g : 0) * (k_end + kPad) + t * 8);
    int tile = 0, k = warp * kStepTerms;
    for (; k >= k_end; k -= k_end) ++tile;
#pragma unroll 1
    for (int tile0 = 0, half = 0; tile0 < share.tiles; tile0 += group, half ^= 1) {
      const int tiles = share.tiles - tile0 < group ? share.tiles - tile0 : group;
      const Shared<float> of_group = sums + half * group * kWarps * values;
      const Shared<float> of_lane = of_group + (warp * values + g * kTileRows + 2 * t);
      int next = tile0;  // a warp may have none of a tile: where it has few terms
      const auto put = [&](float a, float b) {
        if (g < rows) {
          of_lane[(next - tile0) * kWarps * values] = a;
          of_lane[(next - tile0) * kWarps * values + 1] = b;
        }
        ++next;
      };
#pragma unroll 1
      while (tile < tile0 + tiles) {
        float c[2][4] = {};
#pragma unroll 1
        do {
          CopyAsyncWait<kDepth - 1>();
#pragma unroll
          for (int h = 0; h < kStepTerms / 32; ++h) {
            uint32_t w[4], left[4];
            GetWords4(mine, at * kStepElements + h * 256, w);
            GetWords4(left_row, k + h * 32, left);
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
              const uint32_t a[4] = {left[j], 0, left[j + 1], 0};
              MultiplyTile(c[h % 2], a, w[j], w[j + 1]);
            }
          }
          reader.Copy(at);
          at = at + 1 == kDepth ? 0 : at + 1;
          k += kWarps * kStepTerms;
        } while (k < k_end);
        while (next < tile) put(0.0F, 0.0F);
        put(c[0][0] + c[1][0], c[0][1] + c[1][1]);
        for (; k >= k_end; k -= k_end) ++tile;
      }
      while (next < tile0 + tiles) put(0.0F, 0.0F);
      __syncthreads();
      // Eight lanes add up what the warps have of a value.
      const auto sum_of_lanes = [](float sum) {
#pragma unroll
        for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        return sum;
      };
      const auto sum_of = [&](int of_tile, int value) {
        const Shared<float> of = of_group + ((of_tile * kWarps + thread % 8) * values + value);
        return of[0] + of[8 * values];
      };
      const int bits = 3 + chain.rows_bits, items = tiles >> l.gate << bits,
                warps = kWarps >> chain.rows_bits;
#pragma unroll 1
      for (int i = thread / 8; i - i % 4 < items; i += kThreads / 8) {  // whole warps
        const bool is_one = i < items;
        const int of = is_one ? i : 0, of_row = of >> 3 & ((1 << chain.rows_bits) - 1),
                  row = of_row < rows ? of_row : 0, of_tile = of >> bits,
                  value = row * kTileRows + of % kTileRows;
        float v = sum_of(of_tile << l.gate, value), gated = 0.0F, square = 0.0F;
        if (l.gate != 0) gated = sum_of(2 * of_tile + 1, value);
        if (l.f.norm.rows > 0) {
          for (int w = thread % 8; w < warps; w += 8) square += squares[row * warps + w];
        }
        v = sum_of_lanes(v), gated = sum_of_lanes(gated), square = sum_of_lanes(square);
        if (l.f.norm.rows > 0) {
          const float rstd = rsqrtf(square * l.of_k + l.f.norm.eps);
          v *= rstd, gated *= rstd;
        }
        // Rounded as they are where they go through memory.
        if (l.gate != 0) v = Gated(RoundedToBF16(v), RoundedToBF16(gated));
        const int n = share.first + ((tile0 >> l.gate) + of_tile) * kTileRows + of % kTileRows;
        if (is_one && thread % 8 == 0 && of_row < rows && n < share.end) Put(y, int64_t{row} * l.n + n, v);
      }
    }
    if (p + 1 == chain.count) break;
    __syncthreads();  // all of the block's results are written, and x and the sums are read
    if (thread == 0) Arrive(View(meetings));
  }
  // All have met for the last time, so all have read where they began.
  if (thread == 0 && blockIdx.x == 0 && chain.count > 1) View(meetings)[1] = met[0];
  CopyAsyncWait<0>();
}

int Group(int rows) {  // even: a gate and what it is of are added up together
  return rows == 1 ? 12 : rows == 2 ? 6 : 2;
}
int SharedBytes(const device::FusedMultiplyArgs<BF16>& f) {
  const auto rows = static_cast<int>(f.multiply.rows);
  return kRingBytes + 2 * Group(rows) * kWarps * rows * kTileRows * 4 +
         rows * (CeilDiv(static_cast<int>(f.multiply.k), kStepTerms) * kStepTerms + kPad) * 2;
}

}  // namespace

bool TakesInChain(const device::FusedMultiplyArgs<BF16>& a) {
  const device::MultiplyArgs<BF16>& m = a.multiply;
  const bool norm = a.norm.rows > 0, gate = a.glu.rows > 0;
  return m.rows >= 1 && m.rows <= kChainRowsMax && !m.strips && m.k > 0 && m.k <= 65536 && m.n <= 1 << 24 &&
         Wide(m.k, m.w) && (norm || On16Bytes(m.x)) && (!gate || m.n == 2 * a.glu.ff) &&
         (!norm ||
          (a.norm.rstd == nullptr && Wide(a.norm.d, a.norm.x, a.norm.add, a.norm.x_out, a.norm.weight))) &&
         SharedBytes(a) + kWarps * 4 <= SharedMax();
}

int ProductChain(std::span<const device::FusedMultiplyArgs<BF16>> products, Launcher& launcher) {
  const int blocks = Multiprocessors();
  if (blocks == 0) return static_cast<int>(cudaErrorInvalidValue);
  Chain chain;
  int shared = 0;
  for (const device::FusedMultiplyArgs<BF16>& f : products) {
    const bool gate = f.glu.rows > 0;
    const auto n = static_cast<int>(gate ? f.glu.ff : f.multiply.n), k = static_cast<int>(f.multiply.k);
    chain.link[chain.count++] = {.f = f,
                                 .n = n,
                                 .k = k,
                                 .share = n / blocks,
                                 .more = n % blocks,
                                 .steps = CeilDiv(k, kStepTerms),
                                 .gate = gate ? 1 : 0,
                                 .of_k = 1.0F / static_cast<float>(k)};
    shared = std::max(shared, SharedBytes(f));
  }
  chain.rows = static_cast<int>(products.front().multiply.rows);
  while (1 << chain.rows_bits < chain.rows) ++chain.rows_bits;
  chain.group = Group(chain.rows);
  return Launch({.name = "product_chain",
                 .x = blocks,
                 .threads = kThreads,
                 .shared_bytes = shared,
                 .early = true,
                 .beside = true,
                 .together = true},
                launcher.stream(), ProductChainKernel, chain, launcher.Meetings());
}

}  // namespace tidepool::cuda
