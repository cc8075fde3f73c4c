#pragma once
// LibTorch's matrix products made to give a row the same bits in every batch: what deterministic mode rests
// on where a device takes them (OwnProducts() in kernels.h).
//
// Prefill, decode and training multiply the same row by the same weights, each in a batch of its own size.
// LibTorch does not promise equal bits there, and processors differ: with AVX-512 every multiple of 16 rows
// was found equal, with AMX the product [576, 1536] in bfloat16 changes above 128 rows. So batches are cut
// into blocks of few sizes, and every size that is used has been tried on this machine: with the matrix's
// own shape, with the present number of threads, and with rows at other places of the block.
//
// Thread-compatible: Cover() writes, everything else reads.

#include <ATen/core/ATen_fwd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/base/choices.h"
#include "core/base/status.h"
#include "core/device/device.h"

namespace tidepool::device {

class RowBlocks {
 public:
  // out[m, n] = x[m, k] w[k, n]; w is a transposed view.
  using Product = std::function<void(at::Tensor& out, const at::Tensor& x, const at::Tensor& w)>;
  explicit RowBlocks(Product product = nullptr);  // null: LibTorch's

  // Finds the block of every product: the largest size up to which all sizes agree
  // bit for bit. kFailedPrecondition: not even blocks of 16 rows do. Takes 0.1 s (AVX-512) to 2 s (AVX2) of
  // processor time on a 135M model; uses
  // at::get_num_threads() threads, which must stay as they are from then on.
  Status Cover(std::span<const ProductShape> products, DType dtype);

  // out = x w in blocks of sizes that were tried. requires rows in a multiple of 16, a matrix that is
  // covered.
  void Multiply(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const;
  // Rows of the largest block for a matrix [n, k]; 0: it is not covered.
  [[nodiscard]] int64_t Largest(int64_t n, int64_t k) const;
  // Matrices whose block is smaller than the largest that is tried: "down [576, 1536] 128", or "".
  [[nodiscard]] const std::string& limited() const { return limited_; }

 private:
  [[nodiscard]] int64_t Find(int64_t n, int64_t k, DType dtype, int64_t most) const;

  Product product_;
  std::map<std::pair<int64_t, int64_t>, int64_t> largest_;  // by (n, k)
  std::string limited_;
};

}  // namespace tidepool::device
