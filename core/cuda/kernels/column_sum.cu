// Sums over rows: gradients of biases, and the probabilities of experts.
#include "core/cuda/kernels/columns.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kColumnThreads) ColumnSumKernel(device::ColumnSumArgs<T> a) {
  TP_SHARED(float, scratch, kColumnThreads);
  const Global<const T> in = View(a.x);
  AddColumnSums(a.rows, a.n, View(a.out), scratch,
                [&](int64_t r, int64_t c) { return Get(in, r * a.n + c); });
}

__global__ void __launch_bounds__(kColumnThreads) AddProbsKernel(device::AddProbsArgs a) {
  TP_SHARED(double, scratch, kColumnThreads);
  const Global<const float> in = View(a.probs);
  AddColumnSums(a.rows, a.experts, View(a.sum), scratch,
                [&](int64_t r, int64_t c) { return static_cast<double>(in[r * a.experts + c]); });
}

}  // namespace

template <typename T>
int ColumnSum(const device::ColumnSumArgs<T>& a, Launcher& launcher) {
  if (a.rows == 0) return 0;
  return Launch(ColumnGrid("column_sum", a.n), launcher.stream(), ColumnSumKernel<T>, a);
}
TP_INSTANTIATE(ColumnSum)

int AddProbs(const device::AddProbsArgs& a, Launcher& launcher) {
  if (a.rows == 0) return 0;
  return Launch(ColumnGrid("add_probs", a.experts), launcher.stream(), AddProbsKernel, a);
}

}  // namespace tidepool::cuda
