#pragma once
// The CUDA kernels as functions of the host, one for each name of core/device/arguments.h but the products of
// a backward over whole batches, which are LibTorch's: each enqueues its launches and returns 0 or a
// cudaError_t. Pointers are to device memory.
//
// No sum of floats is left to the order of threads: a result has the same bits in every run, and that of a
// row does not depend on the rows beside it (but of FewRowsFused: on their number; and a recorded step of few
// rows has ProductChain in its place). Arrays whose rows are a multiple of 8 elements and that lie on 16
// bytes are read 16 bytes at a time, in the same order of additions.
//
// They are compared with the CPU kernels under an emulation (tests/core/cuda/emulation), and by
// scripts/cuda-test on a GPU: so far an H100 (sm_90), no other. Callable from any thread; they act on the
// thread's current device.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/attention_plan.h"
#include "core/device/arguments.h"

namespace tidepool::cuda {

using device::BF16;
using Stream = void*;  // a cudaStream_t

// What a kernel needs beside its arguments.
class Launcher {
 public:
  virtual ~Launcher() = default;
  [[nodiscard]] virtual Stream stream() = 0;
  // Memory of the device until the next call, on 16 bytes. What was enqueued on the stream before may still
  // use it: kernels run in their order.
  virtual void* Scratch(int64_t bytes) = 0;
  // Two numbers of the device: how often blocks of Grid::together have arrived where they meet, and that
  // number when the kernel before had ended.
  virtual uint64_t* Meetings() = 0;
};

#define TIDEPOOL_TYPED(Kernel) \
  template <typename T>        \
  int Kernel(const device::Kernel##Args<T>&, Launcher&);
#define TIDEPOOL_PLAIN(Kernel) int Kernel(const device::Kernel##Args&, Launcher&);
TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

// Those that are declared above and have no kernel here.
template <typename Args>
inline constexpr bool kHasKernel = true;
template <typename T>
inline constexpr bool kHasKernel<device::MultiplyBackArgs<T>> = false;
template <typename T>
inline constexpr bool kHasKernel<device::MultiplyBackWeightArgs<T>> = false;
template <typename T>
inline constexpr bool kHasKernel<device::LowRankArgs<T>> = false;
template <typename T>
inline constexpr bool kHasKernel<device::AddLowRankArgs<T>> = false;
template <typename T>
inline constexpr bool kHasKernel<device::LowRankBackWeightArgs<T>> = false;

// CUDA's words for what a function above returned; under the emulation what was wrong.
std::string ErrorText(int code);

// The plans of attention_plan.h in device memory.
// Decode: rows by partitions of 256 keys, by absolute position, merged left to right.
struct DecodeWork {
  int64_t rows = 0, items = 0, partials = 0;
  bool several = true;                     // whether a row may have more than one partition
  const int32_t* row = nullptr;            // [rows]: those of the batch that are decoded
  const AttentionItem* item = nullptr;     // [items]
  const int32_t* order = nullptr;          // [sum of counts]: the rows of the items
  const int32_t* first_partial = nullptr;  // [rows of the batch]
};
// Prefill and training: rows of one sequence share a pass over its keys.
struct PrefillWork {
  int64_t items = 0;
  const AttentionItem* item = nullptr;  // [items]; `first` is a row
};
// The backward on tensor cores.
struct BackwardPassWork {
  int64_t blocks = 0;
  const BackwardBlock* block = nullptr;  // [blocks]
  const BackwardStep* step = nullptr;
};
struct BackwardWork {
  BackwardPassWork queries, keys;
  int64_t tiles = 0;               // of 64 rows; 0: there is no plan, and ranges alone say what attends
  const uint64_t* mask = nullptr;  // [masks, 128]
};
// What AttentionArgs::work is, and AttentionBackwardArgs::work with ranges of rows that attend among
// themselves.
struct AttentionOnDevice : device::AttentionWork {
  // All rows are decoded, the last key of each is its own, and no other row attends to that.
  bool rows_apart = false;
  DecodeWork decode;
  PrefillWork prefill;
  BackwardWork backward;
  std::vector<std::pair<int64_t, int64_t>> ranges;
};

// Both at once: q is not written, k and v are. requires RotatesInAttention.
bool RotatesInAttention(const device::RotaryArgs<BF16>&, const device::AttentionArgs<BF16>&);
int RotaryAttention(const device::RotaryArgs<BF16>&, const device::AttentionArgs<BF16>&, Launcher&);

}  // namespace tidepool::cuda
