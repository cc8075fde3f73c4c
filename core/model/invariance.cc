#include "core/model/invariance.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/model/decoder_impl.h"
#include "core/model/kernels/kernels.h"
#include "core/model/weights.h"

namespace tidepool::model {
namespace {

at::Tensor Noise(int64_t rows, int64_t columns, DType dtype, uint64_t seed) {
  at::Tensor t = at::empty({rows, columns}, at::TensorOptions().dtype(ScalarOf(dtype)));
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

bool SameBytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(),
                     static_cast<size_t>(a.numel()) * a.element_size()) == 0;
}

// The first batch size whose rows differ from those of batches of 16, or 0.
int64_t FirstDifference(int64_t n, int64_t k, DType dtype, int64_t largest) {
  const at::Tensor w = Noise(n, k, dtype, 1).t(), x = Noise(largest, k, dtype, 2);
  at::Tensor want = at::empty({largest, n}, x.options());
  const int threads = at::get_num_threads();
  for (int64_t r = 0; r < largest; r += 16) {
    at::Tensor rows = want.narrow(0, r, 16);
    at::mm_out(rows, x.narrow(0, r, 16), w);
  }
  int64_t found = 0;
  for (const int use : {1, threads}) {
    at::set_num_threads(use);
    for (const int64_t m : {16, 32, 48, 64, 112, 256, 512}) {
      if (m > largest || (m == 16 && use == threads)) continue;
      at::Tensor got = at::empty({m, n}, x.options());
      at::mm_out(got, x.narrow(0, largest - m, m), w);
      if (found == 0 && !SameBytes(got, want.narrow(0, largest - m, m))) found = m;
    }
    if (threads == 1) break;
  }
  at::set_num_threads(threads);
  return found;
}

}  // namespace

Status SelfTestBatchInvariance(const ModelSpec& spec, DType dtype) {
  TP_RETURN_IF_ERROR(CheckSpec(spec));
  const int64_t d = spec.hidden_size, q = spec.heads * spec.head_size;
  struct Product {
    const char* name;
    int64_t n, k, largest;
  };
  std::vector<Product> products = {{"qkv", (spec.heads + 2 * spec.kv_heads) * spec.head_size, d, 512},
                                   {"o", d, q, 512},
                                   {"gate_up", 2 * spec.intermediate_size, d, 512},
                                   {"down", d, spec.intermediate_size, 512},
                                   {"head", spec.vocab_size, d, 64}};
  if (spec.sparse_layers() > 0) {
    const int64_t m = spec.moe.intermediate_size, shared = spec.moe.shared_intermediate_size;
    products.push_back({"experts_gate_up", 2 * m, d, 512});
    products.push_back({"experts_down", d, m, 512});
    if (shared > 0) {
      products.push_back({"shared_gate_up", 2 * shared, d, 512});
      products.push_back({"shared_down", d, shared, 512});
    }
  }
  std::string bad;
  for (const Product& p : products) {
    const int64_t m = FirstDifference(p.n, p.k, dtype, p.largest);
    if (m == 0) continue;
    bad += (bad.empty() ? "" : ", ") + std::string(p.name) + " [" + std::to_string(p.n) + ", " +
           std::to_string(p.k) + "] at " + std::to_string(m) + " rows";
  }
  if (bad.empty()) return OkStatus();
  return FailedPrecondition("deterministic mode: on this CPU (" + std::string(IsaName(BestIsa())) +
                            ") matrix products in " + (dtype == DType::kFloat32 ? "float32" : "bfloat16") +
                            " depend on the other rows of the batch: " + bad +
                            "; expected equal bits in every batch. Set deterministic: false, use the other "
                            "model.dtype, or run on a CPU with "
                            "AVX-512 (BF16 for bfloat16)");
}

}  // namespace tidepool::model
