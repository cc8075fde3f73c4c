#pragma once
// The C interface of libtidepool_cuda.so, looked up by name at run time. Included by both sides, so it
// names neither CUDA nor LibTorch types. Raise kAbi with every change that an older caller would misread;
// device::Device and the structs of core/device/arguments.h are part of it.

#include <cstdint>

namespace tidepool::cuda {

inline constexpr int kAbi = 3;

extern "C" {
using AbiFunction = int();
using ErrorFunction = const char*(int code);  // what a cudaError_t says
using DeviceCountFunction = int(int* count);  // 0 or a cudaError_t
// The two below write a message of at most error_bytes - 1 characters on failure and return non-zero.
// device (out): std::unique_ptr<device::Device>*.
using DeviceFunction = int(int index, void* device, char* error, int64_t error_bytes);
// store: const c10::intrusive_ptr<c10d::Store>*;  backend (out): c10::intrusive_ptr<c10d::Backend>*.
using NcclGroupFunction = int(const void* store, int rank, int size, int64_t timeout_ms, void* backend,
                              char* error, int64_t error_bytes);
}

}  // namespace tidepool::cuda
