// Sums over rows: gradients of biases.
#include "core/cuda/kernels/columns.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    ColumnSumKernel(int64_t rows, int64_t columns, int64_t stride, const T* x, float* out) {
  TP_SHARED(float, scratch, kColumnThreads);
  const Global<const T> in = View(x);
  AddColumnSums(rows, columns, View(out), scratch,
                [&](int64_t r, int64_t c) { return Get(in, r * stride + c); });
}

}  // namespace

template <typename T>
int ColumnSum(int64_t rows, int64_t columns, int64_t stride, const T* x, float* out, Stream stream) {
  if (rows == 0) return 0;
  return Launch(ColumnGrid("column_sum", columns), stream, ColumnSumKernel<T>, rows, columns, stride, x, out);
}
template int ColumnSum<float>(int64_t, int64_t, int64_t, const float*, float*, Stream);
template int ColumnSum<BF16>(int64_t, int64_t, int64_t, const BF16*, float*, Stream);

}  // namespace tidepool::cuda
