#pragma once
// What a kernel is written with: threads, views of memory, and the few instructions that C++ has no word for.
//
// Under nvcc this is CUDA itself and costs nothing: a view is a pointer. With TIDEPOOL_CUDA_EMULATION the
// same names come from that file (tests/core/cuda/emulation), which runs a kernel as plain C++ and checks
// every access, barrier and shuffle. So a kernel touches memory through these names alone:
//
//   Global<const T> x = View(args.x);     device memory; x[i], x + i
//   TP_SHARED(float, name, 256);          an array of the block; name[i]
//   TP_DYNAMIC_SHARED(bytes);             Carve<T>(bytes, offset, count) is a part of it
//   Get8, Put8                            8 elements as float32, one or two accesses of 16 bytes
//   GetWords4, PutWords4                  16 bytes as they are
//   GetWords4Fresh                        the same of what other blocks may have written meanwhile
//   Get2, Put2                            2 elements, one access
//   Exp2                                  2^x as the GPU's own instruction has it
//   CopyAsync16, CopyAsyncCommit, CopyAsyncWait<n>    16 bytes from device memory to shared memory
//   LoadMatrix4, LoadMatrix4Transposed, MultiplyTile  ldmatrix and mma.sync.m16n8k16 of a warp
//   WaitForKernelBefore, LetKernelAfterStart          of Grid::early
//   Arrive, Arrivals, AwaitArrivals       of Grid::together: a count in device memory where blocks meet
//   SharedMax()                                       bytes of shared memory that a block may have here
//   Multiprocessors()                                 of the device
//   Launch(grid, stream, kernel, args...)             0 or a cudaError_t
//   LaunchError(code)                                 what that says

#include <cstdint>
#include <string>

#include "core/device/arguments.h"

namespace tidepool::cuda {

using device::BF16;

struct Grid {
  const char* name = "";        // the kernel, for messages of the emulation
  int64_t x = 1, y = 1, z = 1;  // blocks; x below 2^31, y and z below 65536
  int threads = 32;
  int shared_bytes = 0;  // dynamic
  bool early = false;    // may start before the kernel before has ended; it calls WaitForKernelBefore
  // Its blocks join those of the kernel before on a multiprocessor: both have to divide its memory alike.
  bool beside = false;
  bool together = false;  // all blocks run at once; refused where the device has no room for them
};

}  // namespace tidepool::cuda

#ifdef TIDEPOOL_CUDA_EMULATION
#include TIDEPOOL_CUDA_EMULATION  // the file
#else
#include <cuda_runtime.h>

#define TP_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define TP_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

namespace tidepool::cuda {

template <typename T>
using Global = T*;
template <typename T>
using Shared = T*;

template <typename T>
__device__ inline Global<T> View(T* p) {
  return p;
}
template <typename T>
__device__ inline Shared<T> Carve(unsigned char* bytes, int64_t offset, int64_t) {
  return reinterpret_cast<T*>(bytes + offset);
}

__device__ inline float Widen(float v) { return v; }
__device__ inline float Widen(BF16 v) { return __uint_as_float(static_cast<uint32_t>(v.bits) << 16); }
__device__ inline void Narrow(float v, float* out) { *out = v; }
__device__ inline void Narrow(float v, BF16* out) {  // nearest, ties to even
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out->bits) : "f"(v));
}
// Two in a word, the first in its lower half.
__device__ inline uint32_t NarrowTwo(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ inline float Exp2(float v) {  // off by 2^-22 of it at most; what is below 2^-126 is 0
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

// Element i of a view as float32, and back.
template <typename T>
__device__ inline float Get(const T* x, int64_t i) {
  return Widen(x[i]);
}
template <typename T>
__device__ inline void Put(T* x, int64_t i, float v) {
  Narrow(v, x + i);
}
// Elements i to i + 7, of which the first lies on 16 bytes.
__device__ inline void Get8(const float* x, int64_t i, float (&out)[8]) {
  const float4 a = reinterpret_cast<const float4*>(x + i)[0];
  const float4 b = reinterpret_cast<const float4*>(x + i)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
  out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
__device__ inline void Get8(const BF16* x, int64_t i, float (&out)[8]) {
  const uint4 v = reinterpret_cast<const uint4*>(x + i)[0];
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    out[2 * j] = __uint_as_float(words[j] << 16);
    out[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000U);
  }
}
__device__ inline void Put8(float* x, int64_t i, const float (&v)[8]) {
  reinterpret_cast<float4*>(x + i)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(x + i)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ inline void Put8(BF16* x, int64_t i, const float (&v)[8]) {
  reinterpret_cast<uint4*>(x + i)[0] =
      make_uint4(NarrowTwo(v[0], v[1]), NarrowTwo(v[2], v[3]), NarrowTwo(v[4], v[5]), NarrowTwo(v[6], v[7]));
}
// The 16 bytes from element i on, which lie on 16 bytes, as they are.
template <typename T>
__device__ inline void GetWords4(const T* x, int64_t i, uint32_t (&out)[4]) {
  const uint4 v = *reinterpret_cast<const uint4*>(x + i);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
// Past the first cache, which other blocks do not write to.
template <typename T>
__device__ inline void GetWords4Fresh(const T* x, int64_t i, uint32_t (&out)[4]) {
  const uint4 v = __ldcg(reinterpret_cast<const uint4*>(x + i));
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
template <typename T>
__device__ inline void PutWords4(T* x, int64_t i, const uint32_t (&v)[4]) {
  *reinterpret_cast<uint4*>(x + i) = make_uint4(v[0], v[1], v[2], v[3]);
}
// Elements i and i + 1, i even: one access.
__device__ inline void Get2(const float* x, int64_t i, float (&out)[2]) {
  const float2 v = *reinterpret_cast<const float2*>(x + i);
  out[0] = v.x, out[1] = v.y;
}
__device__ inline void Put2(float* x, int64_t i, float a, float b) {
  *reinterpret_cast<float2*>(x + i) = make_float2(a, b);
}
__device__ inline void Put2(BF16* x, int64_t i, float a, float b) {
  *reinterpret_cast<uint32_t*>(x + i) = NarrowTwo(a, b);
}

// Integers only: a sum of floats would depend on the order of the threads.
__device__ inline void AtomicAdd(uint32_t* x, int64_t i, uint32_t v) { atomicAdd(x + i, v); }
__device__ inline void AtomicAdd(uint64_t* x, int64_t i, uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(x + i), static_cast<unsigned long long>(v));
}

// 16 bytes; zeros where `there` is false, and then `from` is not read. The data is there for the copying
// thread after the wait for its group, for others after a barrier that follows.
template <typename T>
__device__ inline void CopyAsync16(T* to, const T* from, bool there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ inline void CopyAsyncWait() {  // until at most the kLeft newest groups are under way
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Four 8 x 8 matrices of bfloat16. Lane 8 m + r names the beginning of row r of matrix m (on 16 bytes);
// lane l gets, of each matrix, elements 2 (l % 4) and the next of row l / 4.
__device__ inline void LoadMatrix4(const BF16* row, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
// The same of the transposed matrices: elements of column l / 4, rows 2 (l % 4) and the next.
__device__ inline void LoadMatrix4Transposed(const BF16* row, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
// c[16 x 8] += a[16 x 16] b[16 x 8], bfloat16 into float32. With g = lane / 4 and t = lane % 4:
//   a[0] row g, columns 2t, 2t + 1;  a[1] row g + 8;  a[2], a[3] the same eight columns further
//   b[0] rows 2t, 2t + 1 of column g;  b[1] eight rows further
//   c[0], c[1] row g, columns 2t, 2t + 1;  c[2], c[3] row g + 8
__device__ inline void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Before a kernel that starts early touches what another may write or still reads. All blocks of the kernel
// before have ended then, and what they wrote is seen. Some block of each such kernel calls it: only so has
// the one before that ended, too.
__device__ inline void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Once all blocks have called it or ended, one that starts early may start.
__device__ inline void LetKernelAfterStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the block wrote before a barrier is seen by who sees the arrival. One thread calls it.
__device__ inline void Arrive(uint64_t* count) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(count) : "memory");
}
__device__ inline uint64_t Arrivals(const uint64_t* count) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(count) : "memory");
  return v;
}
// One thread waits, the others at a barrier after it. A kernel that waits for half a minute is broken.
__device__ inline void AwaitArrivals(const uint64_t* count, uint64_t enough) {
  for (uint32_t tries = 0; Arrivals(count) < enough; ++tries) {
    if (tries == 1U << 26) __trap();
  }
}

std::string LaunchError(int code);
// Of the thread's device, what is static included: 163 KiB on sm_80, 99 on sm_86 and sm_89, 227 on sm_90.
int SharedMax();
int Multiprocessors();
// Lets the kernel have as much dynamic shared memory as the thread's device gives, once for both. Refuses a
// grid that asks for more; LaunchError then says which.
int AllowShared(const void* kernel, const Grid& grid);
// Whether the thread's device knows Grid::early, and the code that it runs: from compute capability 9.0 on.
bool StartsEarly();
template <typename... P, typename... A>
int Launch(const Grid& grid, void* stream, void (*kernel)(P...), A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
  if (grid.x < 0 || grid.x > 0x7FFFFFFF || grid.y < 0 || grid.y > 65535 || grid.z < 0 || grid.z > 65535) {
    return static_cast<int>(cudaErrorInvalidConfiguration);
  }
  if (grid.shared_bytes > 48 * 1024) {  // more than every kernel may have without asking
    if (const int code = AllowShared(reinterpret_cast<const void*>(kernel), grid); code != 0) return code;
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (grid.early && StartsEarly()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.beside) {
    attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[count++].val.sharedMemCarveout = 100;
  }
  if (grid.together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  const cudaLaunchConfig_t config = {.gridDim = blocks,
                                     .blockDim = static_cast<unsigned>(grid.threads),
                                     .dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes),
                                     .stream = static_cast<cudaStream_t>(stream),
                                     .attrs = attributes,
                                     .numAttrs = count};
  const cudaError_t code = cudaLaunchKernelEx(&config, kernel, args...);
  (void)cudaGetLastError();
  return static_cast<int>(code);
}

}  // namespace tidepool::cuda
#endif
