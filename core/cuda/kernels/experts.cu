// Mixture of experts beside its matrix products: the router's logits, the choice and the order of its pairs,
// the weighted sum of the chosen experts' outputs, and their backward.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"
#include "core/cuda/limits.h"

namespace tidepool::cuda {
namespace {

constexpr int kExpertThreads = 256;
constexpr int kExpertWarps = kExpertThreads / 32;
constexpr int64_t kExpertStep = kExpertThreads * 8;

// A warp computes one logit: lanes take eight elements at a time.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads) RouterKernel(device::RouterArgs<T> args, bool wide) {
  const int64_t r = blockIdx.x, e = static_cast<int64_t>(blockIdx.y) * kExpertWarps + threadIdx.x / 32;
  const int64_t d = args.d;
  if (e >= args.experts) return;  // a whole warp
  const Global<const T> row = View(args.x) + r * d, expert = View(args.w) + e * d;
  float sum = 0.0F;
  for (int64_t c = static_cast<int64_t>(threadIdx.x % 32) * 8; c < d; c += 32 * 8) {
    float a[8], b[8];
    GetChunk(row, c, d, wide, a);
    GetChunk(expert, c, d, wide, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += a[j] * b[j];
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) View(args.logits)[r * args.experts + e] = sum;
}

// A warp a row. Lane l has experts l, l + 32, ...
__global__ void __launch_bounds__(kExpertThreads) RouteKernel(device::RouteArgs a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kExpertWarps + threadIdx.x / 32;
  if (r >= a.rows) return;  // a whole warp
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Global<float> p = View(a.probs) + r * a.experts;
  float top = -INFINITY, sum = 0.0F;
  for (int64_t e = lane; e < a.experts; e += 32) top = fmaxf(top, p[e]);
  top = WarpMax(top);
  for (int64_t e = lane; e < a.experts; e += 32) sum += __expf(p[e] - top);
  sum = WarpSum(sum);
  for (int64_t e = lane; e < a.experts; e += 32) p[e] = __expf(p[e] - top) / sum;
  const Global<int32_t> chosen = View(a.chosen) + r * a.k;
  const bool given = a.replay != nullptr && View(a.replay)[r * a.k] >= 0;
  __syncwarp();        // lane 0 reads the weights below, and writes `chosen`, which `replay` may be
  uint32_t taken = 0;  // bit i: expert lane + 32 i
  for (int64_t i = 0; i < a.k; ++i) {
    if (given) {
      if (lane == 0) chosen[i] = View(a.replay)[r * a.k + i];
      continue;
    }
    float best = -2.0F;  // below NaN's -1
    auto best_id = static_cast<int32_t>(a.experts);
    for (int64_t e = lane; e < a.experts; e += 32) {
      if ((taken >> (e / 32) & 1U) != 0) continue;
      const float v = p[e];
      const float key = isnan(v) ? -1.0F : v;
      if (key > best) {
        best = key;
        best_id = static_cast<int32_t>(e);
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, step);
      const int32_t other_id = __shfl_xor_sync(kAllLanes, best_id, step);
      if (other > best || (other == best && other_id < best_id)) {
        best = other;
        best_id = other_id;
      }
    }
    if (best_id % 32 == lane) taken |= 1U << (best_id / 32);
    if (lane == 0) chosen[i] = best_id;
  }
  if (lane != 0) return;
  const Global<float> weights = View(a.weights) + r * a.k;
  float all = 0.0F;
  for (int64_t i = 0; i < a.k; ++i) {
    const float w = p[int32_t{chosen[i]}];
    weights[i] = w;
    all += w;
  }
  if (!a.renormalize) return;
  for (int64_t i = 0; i < a.k; ++i) weights[i] = float{weights[i]} / all;
}

template <typename T>
__global__ void __launch_bounds__(kExpertThreads)
    CombineExpertsKernel(device::CombineExpertsArgs<T> a, bool wide) {
  const int64_t r = blockIdx.x, d = a.d;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kExpertThreads + threadIdx.x) * 8;
  if (c >= d) return;
  float sum[8] = {}, v[8];
  for (int64_t k = r * a.k; k < (r + 1) * a.k; ++k) {
    const float w = View(a.weights)[k];
    GetChunk(View(a.y) + int64_t{View(a.place)[k]} * d, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j] * w;
  }
  if (a.shared != nullptr) {
    const float w = View(a.gate)[r];
    GetChunk(View(a.shared) + r * d, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j] * w;
  }
  PutChunk(View(a.out) + r * d, c, d, wide, sum);
}

// A block a row: for each of its experts, to = w dout and the dot product of dout with the expert's output.
template <typename T>
__device__ inline float ScaleAndDot(Global<const T> dout, Global<const T> y, float w, Global<T> to, int64_t d,
                                    bool wide, Shared<float> scratch) {
  float dot = 0.0F;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 8; c < d; c += kExpertStep) {
    float g[8], v[8];
    GetChunk(dout, c, d, wide, g);
    GetChunk(y, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      dot += g[j] * v[j];
      g[j] *= w;
    }
    PutChunk(to, c, d, wide, g);
  }
  return BlockSum<kExpertThreads>(dot, scratch);
}
template <typename T>
__global__ void __launch_bounds__(kExpertThreads)
    CombineExpertsBackwardKernel(device::CombineExpertsBackwardArgs<T> a, bool wide) {
  TP_SHARED(float, scratch, kExpertWarps);
  const int64_t r = blockIdx.x, d = a.d;
  const Global<const T> dout = View(a.dout) + r * d;
  for (int64_t k = r * a.k; k < (r + 1) * a.k; ++k) {
    const int64_t at = int64_t{View(a.place)[k]} * d;
    const float dot =
        ScaleAndDot(dout, View(a.y) + at, View(a.weights)[k], View(a.dy) + at, d, wide, scratch);
    if (threadIdx.x == 0) View(a.dweights)[k] = dot;
  }
  if (a.shared == nullptr) return;
  const float dot =
      ScaleAndDot(dout, View(a.shared) + r * d, View(a.gate)[r], View(a.dshared) + r * d, d, wide, scratch);
  if (threadIdx.x == 0) View(a.dgate)[r] = dot;
}

// A block an expert: where its rows begin is the number of pairs of experts before it; then its pairs in
// order, a block's worth at a time.
__global__ void __launch_bounds__(kExpertThreads) GroupRowsKernel(device::GroupRowsArgs a) {
  TP_SHARED(int64_t, scratch, kExpertWarps);
  TP_SHARED(int32_t, counts, kExpertWarps);
  const int64_t e = blockIdx.x, pairs = a.rows * a.k;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Global<const int32_t> chosen = View(a.chosen);
  int64_t before = 0;
  for (int64_t i = threadIdx.x; i < pairs; i += kExpertThreads) before += chosen[i] < e ? 1 : 0;
  int64_t place = BlockSum<kExpertThreads>(before, scratch);
  if (threadIdx.x == 0) View(a.begin)[e] = static_cast<int32_t>(place);
  if (e == a.experts) return;
  for (int64_t base = 0; base < pairs; base += kExpertThreads) {
    const int64_t i = base + threadIdx.x;
    const bool mine = i < pairs && chosen[i] == e;
    const unsigned here = __ballot_sync(kAllLanes, mine ? 1 : 0);
    if (lane == 0) counts[warp] = __popc(here);
    __syncthreads();
    int at = __popc(here & ((1U << lane) - 1U)), all = 0;
    for (int w = 0; w < kExpertWarps; ++w) {
      if (w == warp) at += all;
      all += counts[w];
    }
    if (mine) {
      View(a.place)[i] = static_cast<int32_t>(place + at);
      View(a.row_of)[place + at] = static_cast<int32_t>(i / a.k);
    }
    place += all;
    __syncthreads();  // counts are free again
  }
}

// A warp a row, in float64: sums of the whole batch stand in the slopes. Lane l has experts l, l + 32, ...
__global__ void __launch_bounds__(kExpertThreads) RouteBackwardKernel(device::RouteBackwardArgs a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kExpertWarps + threadIdx.x / 32;
  if (r >= a.rows) return;  // a whole warp
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Global<const float> p = View(a.probs) + r * a.experts, weights = View(a.weights) + r * a.k,
                            dweights = View(a.dweights) + r * a.k;
  const Global<const int32_t> chosen = View(a.chosen) + r * a.k;
  double sum = 1.0, inner = 0.0;  // w_k = p_k / sum: d p_k = (d w_k - sum_j w_j d w_j) / sum
  if (a.renormalize) {
    sum = 0.0;
    for (int64_t i = 0; i < a.k; ++i) {
      sum += p[chosen[i]];
      inner += static_cast<double>(weights[i]) * dweights[i];
    }
  }
  const auto slope = [&](int64_t e) {
    double d = View(a.expert_slope)[e];
    for (int64_t i = 0; i < a.k; ++i) {
      if (chosen[i] == e) d += (dweights[i] - inner) / sum;
    }
    return d;
  };
  double mean = 0.0;
  for (int64_t e = lane; e < a.experts; e += 32) mean += p[e] * slope(e);
  mean = WarpSum(mean);
  const Global<float> dlogits = View(a.dlogits) + r * a.experts;
  for (int64_t e = lane; e < a.experts; e += 32) dlogits[e] = static_cast<float>(p[e] * (slope(e) - mean));
}

// A block a row.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads)
    GateBackwardKernel(device::GateBackwardArgs<T> a, bool wide) {
  const int64_t r = blockIdx.x;
  const float g = View(a.gate)[r], dgate = View(a.dgate)[r] * (g * (1.0F - g));
  __syncthreads();  // all have read what one writes
  if (threadIdx.x == 0) View(a.dgate)[r] = dgate;
  const Global<float> dx = View(a.dx) + r * a.d;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 8; c < a.d; c += kExpertStep) {
    float v[8], w[8];
    GetChunk(dx, c, a.d, wide, v);
    GetChunk(View(a.w), c, a.d, wide, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += dgate * w[j];
    PutChunk(dx, c, a.d, wide, v);
  }
}

// `shared` may be `out`: a thread has read its elements before it writes them.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads) SumExpertsKernel(device::SumExpertsArgs<T> a, bool wide) {
  const int64_t r = blockIdx.x, d = a.d;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kExpertThreads + threadIdx.x) * 8;
  if (c >= d) return;
  float sum[8], v[8];
  GetChunk(View(a.sum) + r * d, c, d, wide, sum);
  for (int64_t k = r * a.k; k < (r + 1) * a.k; ++k) {
    GetChunk(View(a.x) + int64_t{View(a.place)[k]} * d, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j];
  }
  if (a.shared != nullptr) {
    GetChunk(View(a.shared) + r * d, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j];
  }
  PutChunk(View(a.out) + r * d, c, d, wide, sum);
}

Grid RowChunks(const char* name, int64_t rows, int64_t d) {
  return {.name = name, .x = rows, .y = CeilDiv<int64_t>(d, kExpertStep), .threads = kExpertThreads};
}
Grid RowWarps(const char* name, int64_t rows) {
  return {.name = name, .x = CeilDiv<int64_t>(rows, kExpertWarps), .threads = kExpertThreads};
}

}  // namespace

template <typename T>
int Router(const device::RouterArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "router",
                 .x = a.rows,
                 .y = CeilDiv<int64_t>(a.experts, kExpertWarps),
                 .threads = kExpertThreads},
                launcher.stream(), RouterKernel<T>, a, Wide(a.d, a.x, a.w));
}
int Route(const device::RouteArgs& a, Launcher& launcher) {
  if (a.experts < 1 || a.experts > kExpertsMax || a.k < 1 || a.k > a.experts) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  return Launch(RowWarps("route", a.rows), launcher.stream(), RouteKernel, a);
}
int GroupRows(const device::GroupRowsArgs& a, Launcher& launcher) {
  return Launch({.name = "group_rows", .x = a.experts + 1, .threads = kExpertThreads}, launcher.stream(),
                GroupRowsKernel, a);
}
int RouteBackward(const device::RouteBackwardArgs& a, Launcher& launcher) {
  return Launch(RowWarps("route_backward", a.rows), launcher.stream(), RouteBackwardKernel, a);
}
template <typename T>
int CombineExperts(const device::CombineExpertsArgs<T>& a, Launcher& launcher) {
  return Launch(RowChunks("combine_experts", a.rows, a.d), launcher.stream(), CombineExpertsKernel<T>, a,
                Wide(a.d, a.y, a.shared, a.out));
}
template <typename T>
int CombineExpertsBackward(const device::CombineExpertsBackwardArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "combine_experts_backward", .x = a.rows, .threads = kExpertThreads},
                launcher.stream(), CombineExpertsBackwardKernel<T>, a,
                Wide(a.d, a.y, a.shared, a.dout, a.dy, a.dshared));
}
template <typename T>
int GateBackward(const device::GateBackwardArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "gate_backward", .x = a.rows, .threads = kExpertThreads}, launcher.stream(),
                GateBackwardKernel<T>, a, Wide(a.d, a.w, a.dx));
}
template <typename T>
int SumExperts(const device::SumExpertsArgs<T>& a, Launcher& launcher) {
  return Launch(RowChunks("sum_experts", a.rows, a.d), launcher.stream(), SumExpertsKernel<T>, a,
                Wide(a.d, a.sum, a.x, a.shared, a.out));
}

TP_INSTANTIATE(Router)
TP_INSTANTIATE(CombineExperts)
TP_INSTANTIATE(CombineExpertsBackward)
TP_INSTANTIATE(GateBackward)
TP_INSTANTIATE(SumExperts)

}  // namespace tidepool::cuda
