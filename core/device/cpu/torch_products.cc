#include "core/device/cpu/torch_products.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/device/cpu/kernels.h"
#include "core/device/cpu/parallel.h"

// c = alpha op(a) op(b) + beta c, from bfloat16 to float32 (row-major, c [m, n]): MKL's, which LibTorch's
// x86-64 builds contain and export. Null in a build without it.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b,
                                                             int m, int n, int k, float alpha,
                                                             const uint16_t* a, int lda, const uint16_t* b,
                                                             int ldb, float beta, float* c, int ldc);

namespace tidepool::device {
namespace {

at::Tensor Matrix(const BF16* p, int64_t rows, int64_t cols) {
  return at::from_blob(const_cast<BF16*>(p), {rows, cols}, at::TensorOptions().dtype(at::kBFloat16));
}

// MKL uses AMX, which is where this is called.
bool AddsUpInFloat32() { return cblas_gemm_bf16bf16f32 != nullptr; }

}  // namespace

BF16* TorchProducts::Scratch(int64_t elements) {
  const auto want = static_cast<size_t>(elements) * sizeof(BF16);
  if (scratch_.bytes().size() < want) {
    scratch_ = PageBuffer();
    StatusOr<PageBuffer> pages = PageBuffer::Create(want);
    TP_CHECK(pages.ok()) << "products: " << pages.status().ToString();
    scratch_ = std::move(pages).value();
  }
  return scratch_.As<BF16>().data();
}

void TorchProducts::Multiply(const MultiplyArgs<BF16>& a) {
  if (a.rows == 0) return;
  const c10::InferenceMode inference;
  const at::Tensor w = Matrix(a.w, a.n, a.k).t();
  if (row_blocks_ == nullptr) {
    at::Tensor y = Matrix(a.y, a.rows, a.n);
    at::mm_out(y, Matrix(a.x, a.rows, a.k), w);
    return;
  }
  // Blocks have multiples of 16 rows at addresses of one alignment, on which MKL's sums may depend.
  const int64_t padded = RoundUp(a.rows, 16);
  const bool as_it_is = padded == a.rows && reinterpret_cast<uintptr_t>(a.x) % 64 == 0;
  BF16* x = as_it_is ? const_cast<BF16*>(a.x) : Scratch(padded * (RoundUp(a.k, 32) + RoundUp(a.n, 32)));
  BF16* y = as_it_is ? a.y : x + padded * RoundUp(a.k, 32);
  if (!as_it_is) {
    std::memcpy(static_cast<void*>(x), a.x, static_cast<size_t>(a.rows * a.k) * sizeof(BF16));
    std::memset(static_cast<void*>(x + a.rows * a.k), 0,
                static_cast<size_t>((padded - a.rows) * a.k) * sizeof(BF16));
  }
  at::Tensor out = Matrix(y, padded, a.n);
  row_blocks_->Multiply(out, Matrix(x, padded, a.k), w);
  if (!as_it_is) std::memcpy(static_cast<void*>(a.y), y, static_cast<size_t>(a.rows * a.n) * sizeof(BF16));
}

void TorchProducts::MultiplyBack(const MultiplyBackArgs<BF16>& a) {
  if (a.rows == 0) return;
  const c10::InferenceMode inference;
  at::Tensor dx = Matrix(a.dx, a.rows, a.k);
  at::mm_out(dx, Matrix(a.dy, a.rows, a.n), Matrix(a.w, a.n, a.k));
}

void TorchProducts::MultiplyBackWeight(const MultiplyBackWeightArgs<BF16>& a) {
  if (a.rows == 0) return;
  const c10::InferenceMode inference;
  if (AddsUpInFloat32()) {
    constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
    const auto n = static_cast<int>(a.n), k = static_cast<int>(a.k);
    cblas_gemm_bf16bf16f32(kRowMajor, kTranspose, kNoTranspose, n, k, static_cast<int>(a.rows), 1.0F,
                           &a.dy->bits, n, &a.x->bits, k, 1.0F, a.dw, k);
    return;
  }
  // The product is rounded to bfloat16 once per call and summed in float32. Blocks of rows bound the copy.
  const at::Tensor dy = Matrix(a.dy, a.rows, a.n), x = Matrix(a.x, a.rows, a.k);
  const int64_t block = std::max<int64_t>(16, (int64_t{8} << 20) / a.k / 16 * 16);
  for (int64_t at = 0; at < a.n; at += block) {
    const int64_t size = std::min(block, a.n - at);
    BF16* product = Scratch(size * a.k);
    at::Tensor out = Matrix(product, size, a.k);
    at::mm_out(out, dy.narrow(1, at, size).t(), x);
    float* to = a.dw + at * a.k;
    ParallelItems(size, a.k, [&](int64_t begin, int64_t end) {
      Kernels<BF16>().accumulate(begin * a.k, end * a.k, product, to);
    });
  }
}

}  // namespace tidepool::device
