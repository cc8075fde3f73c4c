// The emulation finds what it promises to find: a fault of each kind is planted in a small kernel.

#include "core/cuda/device_code.h"
#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

struct Memory {  // device memory of a test
  explicit Memory(int64_t n, bool written = true) : values(static_cast<size_t>(n)) {
    emulation::AddMemory(values.data(), n * 4, 4, written, /*settled=*/true);
  }
  ~Memory() { emulation::RemoveMemory(values.data()); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  float* data() { return values.data(); }
  std::vector<float> values;
};

// Adds up 64 numbers: each thread writes one, a barrier, thread 0 reads them.
void SumKernel(float* out, bool barrier) {
  TP_SHARED(float, values, 64);
  const int t = static_cast<int>(threadIdx.x);
  values[t] = static_cast<float>(t);
  if (barrier) __syncthreads();
  if (t != 0) return;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += values[i];
  View(out)[0] = sum;
}
void RunSum(float* out, bool barrier, uint64_t seed) {
  emulation::Seed(seed);
  Launch({.name = "sum", .threads = 64}, nullptr, SumKernel, out, barrier);
}

bool Says(const std::string& text) { return emulation::Error().find(text) != std::string::npos; }

TEST(EmulationTest, ARightKernelRunsInEveryOrder) {
  Memory out(1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RunSum(out.data(), true, seed);
    EXPECT_EQ(emulation::Error(), "");
    EXPECT_EQ(out.values[0], 2016.0F);
  }
}

TEST(EmulationTest, AMissingBarrierIsFound) {
  Memory out(1);
  int race = 0, early = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RunSum(out.data(), false, seed);
    race += Says("a race") ? 1 : 0;
    early += Says("read before anything was written") ? 1 : 0;
    EXPECT_TRUE(Says("kernel sum, emulation_test.cc:")) << emulation::Error();
    EXPECT_TRUE(Says("thread ")) << emulation::Error();
  }
  EXPECT_EQ(race + early, 20);
  EXPECT_TRUE(race > 0);
}

void TwoWritersKernel() {
  TP_SHARED(float, value, 1);
  value[0] = 1.0F;
}
void ReadThenWriteKernel(bool warp_barrier) {
  TP_SHARED(float, values, 32);
  const int t = static_cast<int>(threadIdx.x);
  values[t] = 1.0F;
  __syncwarp();
  const float next = values[(t + 1) % 32];
  if (warp_barrier) __syncwarp();
  values[t] = next;
}
// All read a place, and after the barrier one thread reads it again and writes it.
void ReadAgainThenWriteKernel(float* out, bool warp_barrier) {
  const Global<float> x = View(out);
  const float seen = x[0];
  if (warp_barrier) __syncwarp();
  if (threadIdx.x == 0) x[0] = seen + x[0];
}
TEST(EmulationTest, ARaceIsFoundAndAWarpBarrierMendsIt) {
  Launch({.name = "two_writers", .threads = 64}, nullptr, TwoWritersKernel);
  EXPECT_TRUE(Says("value: a race")) << emulation::Error();
  Launch({.name = "read_then_write", .threads = 32}, nullptr, ReadThenWriteKernel, false);
  EXPECT_TRUE(Says("values: a race")) << emulation::Error();
  Launch({.name = "read_then_write", .threads = 32}, nullptr, ReadThenWriteKernel, true);
  EXPECT_EQ(emulation::Error(), "");
  Memory out(1);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    emulation::Seed(seed);
    Launch({.name = "read_again", .threads = 32}, nullptr, ReadAgainThenWriteKernel, out.data(), true);
    EXPECT_EQ(emulation::Error(), "");
    Launch({.name = "read_again", .threads = 64}, nullptr, ReadAgainThenWriteKernel, out.data(), true);
    EXPECT_TRUE(Says("a race")) << "another warp reads too";
  }
  Launch({.name = "read_again", .threads = 32}, nullptr, ReadAgainThenWriteKernel, out.data(), false);
  EXPECT_TRUE(Says("a race")) << emulation::Error();
}

void AcrossBlocksKernel(float* out, bool own) {
  const Global<float> x = View(out);
  if (threadIdx.x == 0) x[own ? static_cast<int>(blockIdx.x) : 0] = 1.0F;
}
TEST(EmulationTest, ARaceBetweenBlocksIsFound) {
  Memory out(4);
  Launch({.name = "blocks", .x = 4}, nullptr, AcrossBlocksKernel, out.data(), false);
  EXPECT_TRUE(Says("another block of this launch wrote it")) << emulation::Error();
  Launch({.name = "blocks", .x = 4}, nullptr, AcrossBlocksKernel, out.data(), true);
  EXPECT_EQ(emulation::Error(), "");
}

void CopyKernel(const float* x, float* out, int64_t n) {
  const int64_t i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) View(out)[i] = View(x)[i];
}
void Copy8Kernel(const float* x, float* out) {
  float v[8];
  Get8(View(x), 1 + static_cast<int64_t>(threadIdx.x) * 8, v);
  Put8(View(out), static_cast<int64_t>(threadIdx.x) * 8, v);
}
TEST(EmulationTest, AnAccessOutsideAnArrayIsFound) {
  Memory x(40), out(40, false), foreign(1);
  Launch({.name = "copy", .x = 2}, nullptr, CopyKernel, x.data(), out.data(), int64_t{40});
  EXPECT_EQ(emulation::Error(), "");
  Launch({.name = "copy", .x = 2}, nullptr, CopyKernel, x.data(), out.data(), int64_t{41});
  EXPECT_TRUE(Says("out of bounds, bytes 160 to 164 of 160")) << emulation::Error();
  EXPECT_TRUE(Says("block (1, 0, 0) thread 8")) << emulation::Error();
  float elsewhere = 0;
  Launch({.name = "copy"}, nullptr, CopyKernel, x.data(), &elsewhere, int64_t{1});
  EXPECT_TRUE(Says("not device memory")) << emulation::Error();
  Launch({.name = "copy8"}, nullptr, Copy8Kernel, x.data(), out.data());
  EXPECT_TRUE(Says("off its alignment")) << emulation::Error();
}

TEST(EmulationTest, AnOutputIsNotReadBeforeItIsWritten) {
  Memory x(32, false), out(32, false);
  Launch({.name = "copy"}, nullptr, CopyKernel, x.data(), out.data(), int64_t{32});
  EXPECT_TRUE(Says("read before anything was written")) << emulation::Error();
}

void DivergentShuffleKernel(int lanes) {
  if (static_cast<int>(threadIdx.x) >= lanes) return;
  __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
}
void ShuffleAndBarrierKernel() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __ballot_sync(0xFFFFFFFFU, 1);
  }
}
TEST(EmulationTest, ALaneThatMissesAShuffleIsNamed) {
  Launch({.name = "divergent"}, nullptr, DivergentShuffleKernel, 32);
  EXPECT_EQ(emulation::Error(), "");
  Launch({.name = "divergent"}, nullptr, DivergentShuffleKernel, 31);
  EXPECT_TRUE(Says("lane 31 never comes to __shfl_xor_sync, it has ended")) << emulation::Error();
  Launch({.name = "mixed"}, nullptr, ShuffleAndBarrierKernel);
  EXPECT_TRUE(Says("lane 3 never comes to __ballot_sync, it waits in __syncthreads")) << emulation::Error();
}

void PartialBarrierKernel(bool elsewhere) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else if (elsewhere) {
    __syncthreads();
  }
}
TEST(EmulationTest, ABarrierThatSomeThreadsMissIsFound) {
  Launch({.name = "partial", .threads = 64}, nullptr, PartialBarrierKernel, false);
  EXPECT_TRUE(Says("never comes to __syncthreads, it has ended")) << emulation::Error();
  Launch({.name = "partial", .threads = 64}, nullptr, PartialBarrierKernel, true);
  EXPECT_TRUE(Says("comes to a barrier here while others wait")) << emulation::Error();
}

void AsyncKernel(const float* x, float* out, bool wait, bool barrier) {
  TP_SHARED(float, tile, 128);
  const int t = static_cast<int>(threadIdx.x);
  CopyAsync16(tile + 4 * t, View(x) + 4 * t, t < 31);  // the last four stay zero
  CopyAsyncCommit();
  if (wait) CopyAsyncWait<0>();
  if (barrier) __syncthreads();
  for (int i = t; i < 128; i += 32) View(out)[i] = tile[i];
  if (!wait) CopyAsyncWait<0>();
}
TEST(EmulationTest, AnAsynchronousCopyHasToBeWaitedFor) {
  Memory x(128), out(128);
  for (size_t i = 0; i < 128; ++i) x.values[i] = static_cast<float>(i);
  Launch({.name = "async"}, nullptr, AsyncKernel, x.data(), out.data(), true, true);
  EXPECT_EQ(emulation::Error(), "");
  EXPECT_EQ(out.values[100], 100.0F);
  EXPECT_EQ(out.values[125], 0.0F);
  Launch({.name = "async"}, nullptr, AsyncKernel, x.data(), out.data(), false, true);
  EXPECT_TRUE(Says("was not waited for")) << emulation::Error();
  bool found = false;  // own data only after the wait, that of others after a barrier
  for (uint64_t seed = 0; seed < 5; ++seed) {
    emulation::Seed(seed);
    Launch({.name = "async"}, nullptr, AsyncKernel, x.data(), out.data(), true, false);
    found = found || !emulation::Error().empty();
  }
  EXPECT_TRUE(found);
}

// One mma from matrices in shared memory: a[16 x 16] as it lies, b[16 x 8] as [n, k] or, transposed, as [k,
// n].
void TileKernel(float* out, bool transposed) {
  TP_SHARED(BF16, a, 16 * 24);
  TP_SHARED(BF16, b, 16 * 24);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    Put(a, i / 16 * 24 + i % 16, static_cast<float>(i / 16 + 2 * (i % 16)));
    const int k = transposed ? i / 16 : i % 16, n = transposed ? i % 16 : i / 16;
    Put(b, i / 16 * 24 + i % 16, static_cast<float>((k * 3 + n * 5) % 7));
  }
  __syncwarp();
  uint32_t fa[4], fb[4];
  LoadMatrix4(a + (lane % 16) * 24 + lane / 16 * 8, fa);
  if (transposed) {
    LoadMatrix4Transposed(b + (lane % 16) * 24 + lane / 16 * 8, fb);
  } else {
    LoadMatrix4(b + (lane % 8 + lane / 16 * 8) * 24 + lane / 8 % 2 * 8, fb);
  }
  for (int tile = 0; tile < 2; ++tile) {  // columns 0 to 7, then 8 to 15
    float c[4] = {};
    MultiplyTile(c, fa, fb[2 * tile], fb[2 * tile + 1]);
    for (int i = 0; i < 4; ++i) {
      View(out)[(lane / 4 + i / 2 * 8) * 16 + tile * 8 + 2 * (lane % 4) + i % 2] = c[i];
    }
  }
}
TEST(EmulationTest, FragmentsAreThoseOfMma) {
  Memory out(256, false);
  for (const bool transposed : {false, true}) {
    Launch({.name = "tile"}, nullptr, TileKernel, out.data(), transposed);
    EXPECT_EQ(emulation::Error(), "");
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        int sum = 0;
        for (int k = 0; k < 16; ++k) sum += (m + 2 * k) * ((k * 3 + n * 5) % 7);
        EXPECT_EQ(out.values[static_cast<size_t>(m * 16 + n)], static_cast<float>(sum)) << m << " " << n;
      }
    }
  }
}

enum class Wait { kFirst, kAfterRead, kAfterWrite, kNever };
void EarlyKernel(const float* x, float* out, Wait wait) {
  if (wait == Wait::kFirst) WaitForKernelBefore();
  const float v = View(x)[static_cast<int64_t>(threadIdx.x)];
  if (wait == Wait::kAfterRead) WaitForKernelBefore();
  if (out != nullptr) View(out)[static_cast<int64_t>(threadIdx.x)] = v;
  if (wait == Wait::kAfterWrite) WaitForKernelBefore();
}
TEST(EmulationTest, AKernelThatStartsEarlyHasToWaitForTheOnesBefore) {
  Memory x(32), y(32), z(32);
  const auto early = [](Memory& from, Memory* to, Wait wait) {
    Launch({.name = "early", .early = true}, nullptr, EarlyKernel, static_cast<const float*>(from.data()),
           to == nullptr ? nullptr : to->data(), wait);
  };
  const auto late = [](Memory& from, Memory& to) {
    Launch({.name = "late"}, nullptr, EarlyKernel, static_cast<const float*>(from.data()), to.data(),
           Wait::kNever);
  };
  emulation::Synchronize();
  late(x, y);
  EXPECT_EQ(emulation::Error(), "");
  early(x, &z, Wait::kAfterRead);  // nobody writes x
  EXPECT_EQ(emulation::Error(), "");
  early(z, &x, Wait::kFirst);
  EXPECT_EQ(emulation::Error(), "");
  for (Memory* written : {&x, &y, &z}) {  // each by another of the three, and all may still run
    early(*written, nullptr, Wait::kAfterRead);
    EXPECT_TRUE(Says("read before the wait for the kernel before, which may still write it"))
        << emulation::Error();
  }
  early(y, &x, Wait::kAfterWrite);
  EXPECT_TRUE(Says("device memory: ")) << emulation::Error();
  emulation::Synchronize();
  early(y, &x, Wait::kAfterRead);
  EXPECT_EQ(emulation::Error(), "");
  early(y, &x, Wait::kAfterWrite);
  EXPECT_TRUE(Says("written before the wait for the kernel before")) << emulation::Error();
  emulation::Synchronize();
  early(y, nullptr, Wait::kNever);
  EXPECT_TRUE(Says("starts early, and no block waits")) << emulation::Error();
  late(y, z);  // one that does not start early begins when all have ended, and may itself still run
  early(x, nullptr, Wait::kAfterRead);
  EXPECT_EQ(emulation::Error(), "");
  early(z, nullptr, Wait::kAfterRead);
  EXPECT_TRUE(Says("read before the wait")) << emulation::Error();
  emulation::Wrote(y.data(), 32 * 4);  // a kernel of someone else
  early(z, nullptr, Wait::kAfterRead);
  EXPECT_EQ(emulation::Error(), "");
  early(y, nullptr, Wait::kAfterRead);
  EXPECT_TRUE(Says("read before the wait")) << emulation::Error();
}

TEST(EmulationTest, ABlockHasNoMoreSharedMemoryThanTheDevice) {
  Memory out(1);
  emulation::SetSharedMax(1024);
  RunSum(out.data(), true, 1);
  EXPECT_EQ(emulation::Error(), "");
  Launch({.name = "sum", .threads = 64, .shared_bytes = 1024}, nullptr, SumKernel, out.data(), true);
  EXPECT_TRUE(Says("more shared memory than the 1024 bytes")) << emulation::Error();
  Launch({.name = "sum", .threads = 64, .shared_bytes = 1025}, nullptr, SumKernel, out.data(), true);
  EXPECT_TRUE(Says("a grid that the device does not have")) << emulation::Error();
  emulation::SetSharedMax(163 * 1024);
}

void CountKernel(float* out) {
  TP_SHARED(uint32_t, count, 1);
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  AtomicAdd(count, 0, 1U);
  __syncthreads();
  if (threadIdx.x == 0) View(out)[0] = static_cast<float>(uint32_t{count[0]});
}
TEST(EmulationTest, AtomicsOfManyThreadsAreNoRace) {
  Memory out(1);
  Launch({.name = "count", .threads = 96}, nullptr, CountKernel, out.data());
  EXPECT_EQ(emulation::Error(), "");
  EXPECT_EQ(out.values[0], 96.0F);
}

}  // namespace
}  // namespace tidepool::cuda
