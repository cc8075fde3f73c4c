// Attention of one layer, forward and backward, on random rows in bfloat16: SmolLM2-135M's shape (9 query
// heads, 3 KV heads of 64) and one of 16 query heads, 2 KV heads of 128. The baseline is LibTorch's
// scaled_dot_product_attention in the same run, on keys and values that it finds laid out for it (one tensor
// a sequence, repeated for the query heads). Operations are those of a causal mask: 4 (forward), 10
// (backward) x keys x head_size a row and query head; the peak is that of the widest multiply-add of this
// CPU. Prints one JSON object a case on standard output and a table on standard error.
//
//   attention_bench [--threads 2]

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/device/cpu/cpu_device.h"

namespace tidepool {
namespace {

using device::BestIsa;
using device::BF16;
using device::Isa;

template <typename T>
T* Ptr(const at::Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

struct Timing {
  double median = 0, spread = 0;
};
// With one thread its processor time, which neighbours on the machine change little.
double Now() {
  if (at::get_num_threads() > 1)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double Seconds(const std::function<void()>& body) {
  const double from = Now();
  body();
  return Now() - from;
}
Timing Of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds[seconds.size() * 3 / 4] - seconds[seconds.size() / 4]) / median};
}
// The two in turns, so that other work on the machine meets both alike.
std::pair<Timing, Timing> InTurns(const std::function<void()>& a, const std::function<void()>& b) {
  std::vector<double> of_a, of_b;
  double total = 0;
  a(), b();
  while (of_a.size() < 5 || (total < 0.5 && of_a.size() < 200)) {
    of_a.push_back(Seconds(a));
    of_b.push_back(Seconds(b));
    total += of_a.back() + of_b.back();
  }
  return {Of(of_a), Of(of_b)};
}

std::string Machine() {
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Operations a second of all threads in multiply-adds on registers.
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void PairLoop(int64_t n) {
  __m512 sum[12] = {};
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, x, x);
#pragma GCC unroll 12
    for (__m512& s : sum) asm volatile("" : "+v"(s));
  }
}
__attribute__((target("avx512f"))) void WideLoop(int64_t n) {
  __m512 sum[12] = {};
  const __m512 x = _mm512_set1_ps(1.0F);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_fmadd_ps(s, x, x);
#pragma GCC unroll 12
    for (__m512& s : sum) asm volatile("" : "+v"(s));
  }
}
__attribute__((target("avx2,fma"))) void HalfLoop(int64_t n) {
  __m256 sum[12] = {};
  const __m256 x = _mm256_set1_ps(1.0F);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m256& s : sum) s = _mm256_fmadd_ps(s, x, x);
#pragma GCC unroll 12
    for (__m256& s : sum) asm volatile("" : "+x"(s));
  }
}
double Peak() {
  constexpr int64_t kTurns = 2000000;
  const Isa isa = BestIsa();
  if (isa == Isa::kBaseline) return 0;
  void (*loop)(int64_t) = isa >= Isa::kAvx512Bf16 ? PairLoop : isa == Isa::kAvx512 ? WideLoop : HalfLoop;
  const double each = 12 * (isa >= Isa::kAvx512Bf16 ? 64 : isa == Isa::kAvx512 ? 32 : 16);
  const auto threads = static_cast<double>(at::get_num_threads());
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double s = Seconds([&] {
      at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) loop(kTurns);
      });
    });
    best = std::max(best, static_cast<double>(kTurns) * each * threads / s);
  }
  return best;
}
#else
double Peak() { return 0; }
#endif

struct Shape {
  const char* name;
  int64_t heads, kv_heads, size;
};

// `sequences` of `length` keys, the first `shared` of them common to neighbours in groups of `group`; rows
// for the keys from `from` on.
struct Case {
  const char* name;
  int32_t sequences, group, shared, from, length;
  bool backward;
};

void Run(const Case& c, const Shape& s, double peak, int threads) {
  std::vector<int32_t> first_run, lengths, positions;
  std::vector<device::KvRun> runs;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int32_t slots = 0, shared_at = 0;
  for (int32_t i = 0; i < c.sequences; ++i) {
    if (i % c.group == 0) shared_at = slots, slots += c.shared;
    const auto first = static_cast<int32_t>(runs.size());
    if (c.shared > 0) runs.push_back({shared_at, c.shared});
    runs.push_back({slots, c.length - c.shared});
    ranges.emplace_back(slots, slots + c.length);
    slots += c.length - c.shared;
    for (int32_t k = c.from; k < c.length; ++k)
      first_run.push_back(first), lengths.push_back(k + 1), positions.push_back(k);
  }
  const auto rows = static_cast<int64_t>(lengths.size());
  const auto narrow = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor q = at::randn({rows, s.heads, s.size}, narrow),
                   k = at::randn({slots, s.kv_heads, s.size}, narrow),
                   v = at::randn({slots, s.kv_heads, s.size}, narrow),
                   dout = at::randn({rows, s.heads, s.size}, narrow);
  const at::Tensor out = at::empty({rows, s.heads, s.size}, narrow),
                   lse = at::empty({rows, s.heads}, at::kFloat);
  device::CpuDevice device;
  // Planned once for all layers, so not timed.
  const device::RowRunsOfHost keys_of{first_run, lengths, runs};
  const device::HeadShape shape{s.heads, s.kv_heads, s.size};
  const auto plan = device.PlanAttention(keys_of, shape);
  const device::RowRuns on_device{.rows = rows,
                                  .run_count = static_cast<int64_t>(runs.size()),
                                  .slot_count = slots,
                                  .first_run = first_run.data(),
                                  .lengths = lengths.data(),
                                  .runs = runs.data()};
  const auto forward = [&] {
    device.Attention(device::AttentionArgs<BF16>{.heads = s.heads,
                                                 .kv_heads = s.kv_heads,
                                                 .head_size = s.size,
                                                 .keys = on_device,
                                                 .q = Ptr<BF16>(q),
                                                 .k = Ptr<BF16>(k),
                                                 .v = Ptr<BF16>(v),
                                                 .out = Ptr<BF16>(out),
                                                 .lse = Ptr<float>(lse),
                                                 .work = plan.get()});
  };
  // LibTorch's: [sequence, head, row, size], keys and values of a sequence whole.
  const int64_t n = c.length - c.from;
  const at::Tensor q4 = q.view({c.sequences, n, s.heads, s.size}).transpose(1, 2).contiguous(),
                   k4 = at::randn({c.sequences, s.heads, c.length, s.size}, narrow),
                   v4 = at::randn(k4.sizes(), narrow), dout4 = at::randn(q4.sizes(), narrow);
  const bool causal = n > 1;
  std::tuple<at::Tensor, at::Tensor> theirs;
  const auto peer = [&] {
    if (c.backward)
      theirs = at::_scaled_dot_product_flash_attention_for_cpu(q4, k4, v4, 0.0, causal);
    else
      (void)at::scaled_dot_product_attention(q4, k4, v4, {}, 0.0, causal);
  };
  double keys = 0;
  for (const int32_t length : lengths) keys += length;
  const auto print = [&](const char* what, double operations, const Timing& ours, const Timing& other) {
    const double rate = operations / ours.median;
    const char* commit = std::getenv("TIDEPOOL_COMMIT");
    std::printf(
        "{\"bench\":\"attention\",\"case\":\"%s %s "
        "%s\",\"value\":%.6g,\"unit\":\"s\",\"better\":\"lower\",\"baseline\":"
        "\"scaled_dot_product_attention\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"gflops\":%.4g,\"peak_"
        "share\":%.3g,"
        "\"repeats\":5,\"spread\":%.3g,\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"bf16, %s, threads "
        "%d\"}\n",
        s.name, c.name, what, ours.median, other.median, other.median / ours.median, rate * 1e-9,
        peak > 0 ? rate / peak : 0.0, ours.spread, Machine().c_str(), commit == nullptr ? "" : commit,
        Name(BestIsa()), threads);
    std::fprintf(
        stderr,
        "%-18s %-24s %-8s %10.3f ms %8.1f GFLOP/s %3.0f %% of peak   LibTorch %10.3f ms   ratio %.2f\n",
        s.name, c.name, what, 1e3 * ours.median, rate * 1e-9, peak > 0 ? 100 * rate / peak : 0.0,
        1e3 * other.median, other.median / ours.median);
  };
  const auto [ours, other] = InTurns(forward, peer);
  print("forward", 4 * keys * static_cast<double>(s.heads * s.size), ours, other);
  if (!c.backward) return;

  const auto back = device.PlanAttentionBackward(keys_of, ranges, shape);
  const std::vector<float> cos(static_cast<size_t>(c.length * s.size / 2), 1.0F), sin(cos.size(), 0.0F);
  const at::Tensor dqkv = at::empty({rows, s.heads + 2 * s.kv_heads, s.size}, narrow);
  const auto backward = [&] {
    device.AttentionBackward(device::AttentionBackwardArgs<BF16>{.heads = s.heads,
                                                                 .kv_heads = s.kv_heads,
                                                                 .head_size = s.size,
                                                                 .table_rows = c.length,
                                                                 .keys = on_device,
                                                                 .q = Ptr<BF16>(q),
                                                                 .k = Ptr<BF16>(k),
                                                                 .v = Ptr<BF16>(v),
                                                                 .out = Ptr<BF16>(out),
                                                                 .lse = Ptr<float>(lse),
                                                                 .dout = Ptr<BF16>(dout),
                                                                 .cos = cos.data(),
                                                                 .sin = sin.data(),
                                                                 .positions = positions.data(),
                                                                 .dqkv = Ptr<BF16>(dqkv),
                                                                 .work = back.get()});
  };
  const auto peer_backward = [&] {
    (void)at::_scaled_dot_product_flash_attention_for_cpu_backward(dout4, q4, k4, v4, std::get<0>(theirs),
                                                                   std::get<1>(theirs), 0.0, causal);
  };
  const auto [ours_back, other_back] = InTurns(backward, peer_backward);
  print("backward", 10 * keys * static_cast<double>(s.heads * s.size), ours_back, other_back);
}

int Main(int argc, char** argv) {
  int threads = 2;
  if (argc == 3 && std::strcmp(argv[1], "--threads") == 0)
    threads = std::atoi(argv[2]);
  else if (argc != 1)
    return std::fprintf(stderr, "usage: attention_bench [--threads N]\n"), 2;
  at::set_num_threads(threads);
  const double peak = Peak();
  std::fprintf(stderr, "%s, %s, %d threads: multiply-adds on registers %.0f GFLOP/s\n", Machine().c_str(),
               Name(BestIsa()), threads, peak * 1e-9);
  for (const Shape& s : {Shape{"9 heads of 64", 9, 3, 64}, Shape{"16 heads of 128", 16, 2, 128}}) {
    for (const Case& c :
         {Case{"decode 1 x 64", 1, 1, 0, 63, 64, false}, Case{"decode 1 x 1k", 1, 1, 0, 1023, 1024, false},
          Case{"decode 1 x 8k", 1, 1, 0, 8191, 8192, false},
          Case{"decode 2 groups of 8, 1k", 16, 8, 1024, 1055, 1056, false},
          Case{"decode 16 x 1k apart", 16, 1, 0, 1055, 1056, false},
          Case{"prefill 1k", 1, 1, 0, 0, 1024, false}, Case{"training 64 x 128", 64, 1, 0, 0, 128, true},
          Case{"training 4 x 1k", 4, 1, 0, 0, 1024, true}, Case{"training 1 x 4k", 1, 1, 0, 0, 4096, true}})
      Run(c, s, peak, threads);
  }
  return 0;
}

}  // namespace
}  // namespace tidepool

int main(int argc, char** argv) { return tidepool::Main(argc, argv); }
