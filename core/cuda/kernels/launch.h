#pragma once
// The CUDA kernels as functions of the host: each enqueues one or two launches on `stream` and returns 0 or a
// cudaError_t. What they compute is what the CPU kernels of the same name do (core/device/cpu/kernels.h
// has the formulas and argument structs; `rows` stands beside them); pointers are to device memory.
//
// No sum of floats is left to the order of threads: a result has the same bits in every run, and that of a
// row does not depend on the rows beside it. Arrays whose rows are a multiple of 8 elements and that lie on
// 16 bytes are read 16 bytes at a time, in the same order of additions.
//
// Not one of these has run on a GPU yet. They are compiled by nvcc, and compared with the CPU kernels under
// an emulation (tests/core/cuda/emulation). Callable from any thread; they act on the thread's current
// device.

#include <cstdint>

#include "core/cuda/attention_plan.h"
#include "core/device/cpu/kernels.h"

namespace tidepool::cuda {

using device::AdamWArgs;
using device::BF16;
using Stream = void*;  // a cudaStream_t

using device::SampleRow;
// The draw is that of device::DrawToken, with one difference: masses under the cut of top_p are added as
// multiples of 2^-44, since integers have the same sum in every order.
template <typename T>
struct SampleArgs {
  int64_t rows = 0, vocab = 0;     // vocab at most 327 680
  const T* logits = nullptr;       // [rows, vocab]
  const SampleRow* how = nullptr;  // [rows]
  int32_t* ids = nullptr;          // [rows]; -1: the row holds a value that is not finite
  float* logprobs = nullptr;       // [rows]: log p(id) without cuts, at the temperature (1 where it is 0)
  float* log_kept = nullptr;       // [rows]: log of the share of mass that the cuts kept; 0 without cuts
};

// Routing of a mixture of experts: softmax of the logits, the k most probable experts (the lower id first
// among equals), or those given, and their weights.
struct RouteArgs {
  int64_t rows = 0, experts = 0, k = 0;  // experts at most 1024, k at most 32
  float* probs = nullptr;                // [rows, experts]: logits, in place
  const int32_t* replay = nullptr;       // [rows, k] or null; a first id below 0: not given
  bool renormalize = false;              // weights sum to 1
  int32_t* chosen = nullptr;             // [rows, k]
  float* weights = nullptr;              // [rows, k]
};

// Products of the experts: the rows [begin[g], begin[g + 1]) by the matrix g.
template <typename T>
struct GroupedArgs {
  int64_t groups = 0, rows = 0, n = 0, k = 0;  // rows: at least begin[groups]
  const int32_t* begin = nullptr;  // [groups + 1], begin[0] = 0; on the device, as the router left it
  const T* x = nullptr;            // [rows, k]
  const T* w = nullptr;            // [groups, n, k]
  T* y = nullptr;                  // [rows, n] = x w^T
  const T* dy = nullptr;           // [rows, n]
  T* dx = nullptr;                 // [rows, k] = dy w
  float* dw = nullptr;             // [groups, n, k] += dy^T x
};

// Decode: attention of rows by partitions of 256 keys, by absolute position, merged left to right.
template <typename T>
struct DecodeArgs {
  device::AttentionArgs<T> attention;
  int64_t rows = 0;
  int64_t items = 0;                       // of PlanDecode
  const AttentionItem* item = nullptr;     // [items]
  const int32_t* order = nullptr;          // [sum of counts]: the rows of the items
  const int32_t* first_partial = nullptr;  // [rows]
  float* partial = nullptr;                // DecodeScratch() floats
};
// Prefill and training: rows of one sequence share a pass over its keys.
template <typename T>
struct PrefillArgs {
  device::AttentionArgs<T> attention;
  int64_t items = 0;                    // of PlanPrefill; `first` is a row
  const AttentionItem* item = nullptr;  // [items]
};

template <typename T>
struct Launches {
  int (*rms_norm)(const device::RmsNormArgs<T>&, int64_t rows, Stream);
  int (*rms_norm_backward)(int64_t rows, int64_t d, const T* x, const T* weight, const float* rstd,
                           const T* dout, float* dx, T* dx_copy, Stream);
  int (*rms_norm_backward_weight)(int64_t rows, int64_t d, const T* x, const float* rstd, const T* dout,
                                  float* dweight, Stream);
  int (*rotary)(const device::RotaryArgs<T>&, int64_t rows, Stream);
  // scratch: HeadNormScratch(rows, head_size) floats.
  int (*head_norm_backward)(const device::HeadNormBackwardArgs<T>&, int64_t rows, float* dweight,
                            float* scratch, Stream);
  int (*add_bias)(int64_t rows, int64_t n, const T* bias, T* x, Stream);
  int (*swiglu)(int64_t rows, int64_t ff, const T* gate_up, T* act, Stream);
  int (*swiglu_backward)(int64_t rows, int64_t ff, const T* gate_up, const T* dact, T* dgate_up, Stream);
  int (*token_logprob)(int64_t rows, int64_t vocab, const T* logits, const int32_t* ids,
                       float inv_temperature, float* logprob, float* entropy, float* lse, Stream);
  int (*token_logprob_backward)(int64_t rows, int64_t vocab, T* logits, const int32_t* ids,
                                float inv_temperature, const float* lse, const float* entropy,
                                const float* dlogprob, const float* dentropy, Stream);
  int (*sample)(const SampleArgs<T>&, Stream);
  int (*column_sum)(int64_t rows, int64_t columns, int64_t stride, const T* x, float* out, Stream);
  // out[r] = table[ids[r]]: of the embedding, and of rows on their way to their experts.
  int (*gather_rows)(int64_t rows, int64_t d, const int32_t* ids, const T* table, T* out, Stream);
  int (*embedding_backward)(int64_t rows, int64_t d, const int32_t* ids, const float* dx, float* table,
                            Stream);
  int (*accumulate)(int64_t n, const T* x, float* sum, Stream);
  int (*widen)(int64_t n, const T* x, float* out, Stream);
  int (*narrow)(int64_t n, const float* x, T* out, Stream);
  int (*router)(int64_t rows, int64_t d, int64_t experts, const T* x, const T* w, float* logits, Stream);
  int (*route)(const RouteArgs&, Stream);
  int (*grouped_multiply)(const GroupedArgs<T>&, Stream);              // y
  int (*grouped_multiply_back)(const GroupedArgs<T>&, Stream);         // dx
  int (*grouped_multiply_back_weight)(const GroupedArgs<T>&, Stream);  // dw
  int (*combine_experts)(const device::CombineExpertsArgs<T>&, Stream);
  int (*combine_experts_backward)(const device::CombineExpertsBackwardArgs<T>&, Stream);
  // *sum = sum of x_i^2 in float64. scratch: SquareSumScratch(n) doubles.
  int (*square_sum)(int64_t n, const float* x, double* sum, double* scratch, Stream);
  int (*adamw)(const AdamWArgs<T>&, Stream);
  int (*decode_attention)(const DecodeArgs<T>&, Stream);
  int (*prefill_attention)(const PrefillArgs<T>&, Stream);
  // Of rows [row_begin, row_end), as model::KernelTable's. scratch: (row_end - row_begin) * heads floats.
  int (*attention_backward)(const device::AttentionBackwardArgs<T>&, int64_t row_begin, int64_t row_end,
                            float* scratch, Stream);
};

// T: float or BF16.
template <typename T>
const Launches<T>& LaunchTable();

// Rows whose gradients of the head norms are added up by one block.
constexpr int64_t kHeadNormRows = 32;
inline int64_t HeadNormScratch(int64_t rows, int64_t head_size) {
  return (rows + kHeadNormRows - 1) / kHeadNormRows * 2 * head_size;
}
constexpr int64_t kSquareSumBlock = 65536;  // elements
inline int64_t SquareSumScratch(int64_t n) { return (n + kSquareSumBlock - 1) / kSquareSumBlock; }
// partials: of PlanDecode.
inline int64_t DecodeScratch(int64_t partials, int64_t heads, int64_t head_size) {
  return partials * heads * (head_size + 2);
}

}  // namespace tidepool::cuda
