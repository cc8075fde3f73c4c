// The digests of buckets of words: whole numbers, so the order of additions does not show. Bound by memory: a
// word is read once, 256 bytes at a time for a warp.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kSumThreads = 256;
constexpr int64_t kPieceWords = 16384;  // of a block: 64 a thread

// Mix64 of core/base/hash.h.
__device__ inline uint64_t Mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// One piece of a bucket.
__global__ void __launch_bounds__(kSumThreads)
    SaltedPieceKernel(device::SaltedSumsArgs a, int64_t pieces, uint64_t* out) {
  TP_SHARED(uint64_t, scratch, kSumThreads / 32);
  const int64_t bucket = blockIdx.x / pieces, first = blockIdx.x % pieces * kPieceWords,
                begin = bucket * a.bucket_words;
  int64_t end = first + kPieceWords < a.bucket_words ? first + kPieceWords : a.bucket_words;
  if (end > a.words - begin) end = a.words - begin;
  const Global<const uint64_t> x = View(a.x);
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += kSumThreads)
    sum += Mixed(x[begin + i] ^ Mixed(static_cast<uint64_t>(bucket + i)));
  sum = BlockSum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) View(out)[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    SaltedBucketKernel(int64_t pieces, const uint64_t* of_pieces, uint64_t* sums) {
  TP_SHARED(uint64_t, scratch, kSumThreads / 32);
  const Global<const uint64_t> in = View(of_pieces);
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < pieces; i += kSumThreads) sum += in[blockIdx.x * pieces + i];
  sum = BlockSum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) View(sums)[blockIdx.x] = sum;
}

}  // namespace

int SaltedSums(const device::SaltedSumsArgs& a, Launcher& launcher) {
  const int64_t longest = a.words < a.bucket_words ? a.words : a.bucket_words,
                pieces = CeilDiv<int64_t>(longest, kPieceWords), all = a.buckets() * pieces;
  auto* sums = static_cast<uint64_t*>(launcher.Scratch(all * static_cast<int64_t>(sizeof(uint64_t))));
  if (const int code = Launch({.name = "salted_piece", .x = all, .threads = kSumThreads}, launcher.stream(),
                              SaltedPieceKernel, a, pieces, sums);
      code != 0) {
    return code;
  }
  return Launch({.name = "salted_bucket", .x = a.buckets(), .threads = kSumThreads}, launcher.stream(),
                SaltedBucketKernel, pieces, static_cast<const uint64_t*>(sums), a.sums);
}

}  // namespace tidepool::cuda
