// Mixture of experts beside its matrix products: the router's logits, the choice, the weighted sum of the
// chosen experts' outputs, and its backward.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

constexpr int kExpertThreads = 256;
constexpr int kExpertWarps = kExpertThreads / 32;
constexpr int64_t kExpertStep = kExpertThreads * 8;
constexpr int64_t kExpertsMax = 1024, kChosenMax = 32;

// A warp computes one logit: lanes take eight elements at a time.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads)
    RouterKernel(int64_t d, int64_t experts, const T* x, const T* w, float* logits, bool wide) {
  const int64_t r = blockIdx.x, e = static_cast<int64_t>(blockIdx.y) * kExpertWarps + threadIdx.x / 32;
  if (e >= experts) return;  // a whole warp
  const Global<const T> row = View(x) + r * d, expert = View(w) + e * d;
  float sum = 0.0F;
  for (int64_t c = static_cast<int64_t>(threadIdx.x % 32) * 8; c < d; c += 32 * 8) {
    float a[8], b[8];
    GetChunk(row, c, d, wide, a);
    GetChunk(expert, c, d, wide, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += a[j] * b[j];
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) View(logits)[r * experts + e] = sum;
}

// A warp a row. Lane l has experts l, l + 32, ...
__global__ void __launch_bounds__(kExpertThreads) RouteKernel(RouteArgs a) {
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
  __syncwarp();  // the weights below are read by lane 0

  const Global<int32_t> chosen = View(a.chosen) + r * a.k;
  const bool given = a.replay != nullptr && View(a.replay)[r * a.k] >= 0;
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

}  // namespace

template <typename T>
int Router(int64_t rows, int64_t d, int64_t experts, const T* x, const T* w, float* logits, Stream stream) {
  return Launch(
      {.name = "router", .x = rows, .y = CeilDiv<int64_t>(experts, kExpertWarps), .threads = kExpertThreads},
      stream, RouterKernel<T>, d, experts, x, w, logits, Wide(d, x, w));
}
int Route(const RouteArgs& a, Stream stream) {
  if (a.experts < 1 || a.experts > kExpertsMax || a.k < 1 || a.k > kChosenMax || a.k > a.experts) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  return Launch({.name = "route", .x = CeilDiv<int64_t>(a.rows, kExpertWarps), .threads = kExpertThreads},
                stream, RouteKernel, a);
}
template <typename T>
int CombineExperts(const device::CombineExpertsArgs<T>& a, Stream stream) {
  return Launch({.name = "combine_experts",
                 .x = a.rows,
                 .y = CeilDiv<int64_t>(a.d, kExpertStep),
                 .threads = kExpertThreads},
                stream, CombineExpertsKernel<T>, a, Wide(a.d, a.y, a.shared, a.out));
}
template <typename T>
int CombineExpertsBackward(const device::CombineExpertsBackwardArgs<T>& a, Stream stream) {
  return Launch({.name = "combine_experts_backward", .x = a.rows, .threads = kExpertThreads}, stream,
                CombineExpertsBackwardKernel<T>, a, Wide(a.d, a.y, a.shared, a.dout, a.dy, a.dshared));
}

#define TP_INSTANTIATE(T)                                                                \
  template int Router<T>(int64_t, int64_t, int64_t, const T*, const T*, float*, Stream); \
  template int CombineExperts<T>(const device::CombineExpertsArgs<T>&, Stream);          \
  template int CombineExpertsBackward<T>(const device::CombineExpertsBackwardArgs<T>&, Stream);
TP_INSTANTIATE(float)
TP_INSTANTIATE(BF16)
#undef TP_INSTANTIATE

}  // namespace tidepool::cuda
