#pragma once
// The C interface of libtidepool_cuda.so, looked up by name at run time. Included by both sides, so it
// names neither CUDA nor LibTorch types: a stream is a cudaStream_t, device pointers are raw pointers.
// Functions return 0 or a cudaError_t. Raise kAbi with every change that an older caller would misread; the
// table of kernels (core/cuda/kernels/launch.h) and the structs that it takes are part of it.

#include <cstdint>

namespace tidepool::cuda {

inline constexpr int kAbi = 2;

enum class ElementType : int { kFloat32 = 0, kBFloat16 = 1 };

// Log-probabilities of given tokens (core/cuda/token_logprob_reference.h has the formula). Pointers to
// device memory.
struct TokenLogProbArgs {
  ElementType type = ElementType::kFloat32;
  const void* logits = nullptr;  // [n, vocab], rows `row_stride` elements apart
  int64_t row_stride = 0;        // >= vocab
  const int32_t* ids = nullptr;  // [n]; outside [0, vocab): the row's log-probability is NaN
  int64_t n = 0;                 // 0: nothing is done
  int64_t vocab = 0;             // > 0
  float temperature = 1.0F;      // > 0
  float* logprobs = nullptr;     // [n]
  float* entropy = nullptr;      // [n], or null
};

extern "C" {
using AbiFunction = int();
using ErrorFunction = const char*(int code);
using DeviceCountFunction = int(int* count);
using TokenLogProbFunction = int(const TokenLogProbArgs* args, void* stream);  // asynchronous on `stream`
using LaunchesFunction = const void*(int element_type);  // a Launches<T>, for the life of the process
using AllocateFunction = int(void** device, int64_t bytes);
using FreeFunction = int(void* device);
using CopyFunction = int(void* to, const void* from, int64_t bytes);  // either way, synchronous
using SynchronizeFunction = int(void* stream);
// store: const c10::intrusive_ptr<c10d::Store>*;  backend (out): c10::intrusive_ptr<c10d::Backend>*.
// On failure writes a message of at most error_bytes - 1 characters and returns non-zero.
using NcclGroupFunction = int(const void* store, int rank, int size, int64_t timeout_ms, void* backend,
                              char* error, int64_t error_bytes);
}

}  // namespace tidepool::cuda
