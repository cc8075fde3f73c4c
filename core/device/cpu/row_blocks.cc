#include "core/device/cpu/row_blocks.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/device/cpu/kernels.h"
#include "core/device/cpu/parallel.h"

namespace tidepool::device {
namespace {

// Every size up to 128, because decoding meets them all and its time is that of reading the weights, which
// two products would read twice. Above, few: each size costs time at the start, and products of 256 rows are
// nearly as fast per row as larger ones.
constexpr int64_t kSizes[] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 256};
constexpr int64_t kMost = 256;
constexpr int64_t kMostOfHead = 64;  // so wide a matrix costs most of the trial, and 64 rows keep a core busy
constexpr int64_t kShift = 5;        // to another place: odd, so that no two rows keep their distance to 16

template <typename T>
T* Ptr(const at::Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

at::Tensor Noise(int64_t rows, int64_t columns, DType dtype, uint64_t seed) {
  at::Tensor t = at::empty({rows, columns},
                           at::TensorOptions().dtype(dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16));
  const int64_t n = rows * columns;
  ParallelItems((n + 4095) / 4096, 4096 * 8, [&](int64_t begin, int64_t end) {
    float block[4096];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t size = std::min<int64_t>(4096, n - b * 4096);
      for (int64_t i = 0; i < size; ++i) {
        const auto bits = static_cast<uint32_t>(Mix64(seed + static_cast<uint64_t>(b * 4096 + i)) >> 40);
        block[i] = static_cast<float>(bits) * 0x1p-23F - 1.0F;
      }
      if (dtype == DType::kFloat32) {
        std::memcpy(Ptr<float>(t) + b * 4096, block, static_cast<size_t>(size) * 4);
      } else {
        Kernels<BF16>().narrow(0, size, block, Ptr<BF16>(t) + b * 4096);
      }
    }
  });
  return t;
}

// Copies the rows of `from` that stand `shift` further on, the first ones after the last.
at::Tensor Shifted(const at::Tensor& from, int64_t shift, int64_t rows) {
  at::Tensor to = at::empty({rows, from.size(1)}, from.options());
  const size_t bytes = static_cast<size_t>(from.size(1)) * from.element_size();
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + static_cast<size_t>(r) * bytes,
                static_cast<const char*>(from.const_data_ptr()) +
                    static_cast<size_t>((r + shift) % from.size(0)) * bytes,
                bytes);
  }
  return to;
}

bool SameBytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(),
                     static_cast<size_t>(a.numel()) * a.element_size()) == 0;
}

}  // namespace

RowBlocks::RowBlocks(Product product)
    : product_(product != nullptr ? std::move(product)
                                  : [](at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
                                      at::mm_out(out, x, w);
                                    }) {}

int64_t RowBlocks::Find(int64_t n, int64_t k, DType dtype, int64_t most) const {
  const at::Tensor w = Noise(n, k, dtype, 1).t(), x = Noise(most, k, dtype, 2);
  at::Tensor want = at::empty({most, n}, x.options());
  for (int64_t r = 0; r < most; r += kSizes[0]) {
    at::Tensor rows = want.narrow(0, r, kSizes[0]);
    product_(rows, x.narrow(0, r, kSizes[0]), w);
  }
  int64_t found = 0;
  for (const int64_t size : kSizes) {
    if (size > most) break;
    at::Tensor got = at::empty({size, n}, x.options());
    product_(got, Shifted(x, kShift, size), w);
    if (!SameBytes(got, Shifted(want, kShift, size))) break;
    found = size;
  }
  return found;
}

Status RowBlocks::Cover(std::span<const ProductShape> products, DType dtype) {
  std::string bad;
  for (const ProductShape& m : products) {
    if (Largest(m.n, m.k) > 0) continue;  // a matrix of this shape is covered
    const int64_t most = m.head ? kMostOfHead : kMost, found = Find(m.n, m.k, dtype, most);
    const std::string name =
        std::string(m.name) + " [" + std::to_string(m.n) + ", " + std::to_string(m.k) + "]";
    if (found == 0) bad += (bad.empty() ? "" : ", ") + name;
    if (found < most) limited_ += (limited_.empty() ? "" : ", ") + name + " " + std::to_string(found);
    largest_[{m.n, m.k}] = found;
  }
  if (bad.empty()) return OkStatus();
  const bool wide = dtype == DType::kFloat32;
  return FailedPrecondition(
      "deterministic mode: LibTorch's products in " + std::string(wide ? "float32" : "bfloat16") +
      " on this CPU (" + std::string(Name(BestIsa())) + ", " + std::to_string(at::get_num_threads()) +
      " threads) give a row other bits at another place of the same batch of 16 rows: " + bad +
      "; tried were batches of 16 to " + std::to_string(kMost) +
      " rows. Set deterministic: false, or try model.dtype: " + (wide ? "bfloat16" : "float32") +
      " or cluster.threads_per_slot: 1");
}

int64_t RowBlocks::Largest(int64_t n, int64_t k) const {
  const auto it = largest_.find({n, k});
  return it == largest_.end() ? 0 : it->second;
}

void RowBlocks::Multiply(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const {
  const int64_t rows = x.size(0), most = Largest(w.size(1), w.size(0));
  TP_CHECK(rows % kSizes[0] == 0 && most > 0)
      << "deterministic product of " << rows << " rows by [" << w.size(1) << ", " << w.size(0) << "]";
  for (int64_t at = 0; at < rows;) {
    const int64_t left = std::min(rows - at, most);
    const int64_t size = *std::prev(std::upper_bound(std::begin(kSizes), std::end(kSizes), left));
    if (size == rows) return product_(out, x, w);
    at::Tensor block = out.narrow(0, at, size);
    product_(block, x.narrow(0, at, size), w);
    at += size;
  }
}

}  // namespace tidepool::device
