// Every kernel on two devices: the CPU's own against LibTorch's plain operations, or what
// TIDEPOOL_TEST_DEVICE names (test_device.h), on random arrays.
//
// A kernel of the lists in arguments.h without a Case here does not compile. A Case says the sizes, which
// optional arrays there are, and what index arrays hold; all other arrays are found by Fields(): inputs are
// noise and must still be there afterwards, outputs begin as other garbage on each device and must agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <type_traits>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/torch_device.h"
#include "tests/core/device/test_device.h"
#include "tests/core/fuzz_seeds.h"

namespace tidepool::device {
namespace {

template <typename T>
constexpr bool kIsReal = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, BF16>;

template <typename T>
double ToDouble(T x) {
  if constexpr (std::is_same_v<T, BF16>) {
    const uint32_t u = uint32_t{x.bits} << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  } else {
    return static_cast<double>(x);
  }
}
template <typename T>
std::vector<T> ToType(const std::vector<double>& values) {
  std::vector<float> wide(values.begin(), values.end());
  if constexpr (std::is_same_v<T, BF16>) {
    std::vector<BF16> narrow(wide.size());
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, static_cast<int64_t>(wide.size()), wide.data(), narrow.data());
    return narrow;
  } else {
    return std::vector<T>(values.begin(), values.end());
  }
}

// Random sizes and arrays of the host, which it keeps.
class Draws {
 public:
  explicit Draws(uint64_t seed) : rng(seed) {}
  Rng rng;

  bool Some() { return rng.Chance(0.5); }
  // 1 to most: often 1, or a multiple of 16.
  int64_t Size(int64_t most) {
    const int64_t n = rng.InRange(1, most), kind = rng.Below(6);
    return kind == 0 ? 1 : kind == 1 ? std::max<int64_t>(1, n / 16 * 16) : n;
  }
  template <typename V>
  V* Keep(std::vector<V> values) {
    auto kept = std::make_shared<std::vector<V>>(std::move(values));
    kept_.push_back(kept);
    return kept->data();
  }
  // An optional output that is wanted.
  template <typename V>
  V* Wanted() {
    return Keep(std::vector<V>(1));
  }
  template <typename T>
  T* Noise(int64_t n, double scale = 1) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(scale * rng.Normal());
    return Keep(ToType<T>(values));
  }
  float* Between(int64_t n, double low, double high) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(low + rng.Uniform() * (high - low)));
    return Keep(std::move(values));
  }
  int32_t* Ids(int64_t n, int64_t below) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.Below(below)));
    return Keep(std::move(ids));
  }
  // Some of them -1.
  int32_t* IdsOrNone(int64_t n, int64_t below) {
    int32_t* ids = Ids(n, below);
    for (int64_t i = 0; i < n && rng.Chance(0.5); ++i) ids[rng.Below(n)] = -1;
    return ids;
  }
  // n of [0, of), each once.
  std::vector<int32_t> Distinct(int64_t n, int64_t of) {
    std::vector<int32_t> ids(static_cast<size_t>(of));
    std::iota(ids.begin(), ids.end(), 0);
    rng.Shuffle(std::span<int32_t>(ids));
    ids.resize(static_cast<size_t>(n));
    return ids;
  }
  // [rows, k], those of a row distinct; the later ids are rare, so that some have no row.
  int32_t* Chosen(int64_t rows, int64_t k, int64_t experts) {
    std::vector<int32_t> all;
    for (int64_t r = 0; r < rows; ++r) {
      for (const int32_t id : Distinct(k, rng.InRange(k, experts))) all.push_back(id);
    }
    return Keep(std::move(all));
  }
  // Logits of rows: as they come, all equal, masked in places, with a NaN.
  template <typename T>
  T* Logits(int64_t rows, int64_t vocab) {
    std::vector<double> all;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t kind = rng.Below(6), at = rng.Below(vocab);
      for (int64_t c = 0; c < vocab; ++c) {
        double z = kind == 0 ? 1.5 : 3 * rng.Normal();
        if (kind == 1 && c != at && rng.Chance(0.4)) z = -INFINITY;
        if (kind == 2 && c == at) z = NAN;
        all.push_back(z);
      }
    }
    return Keep(ToType<T>(all));
  }

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

// How far results may lie apart: `of_value` of the value and `noise` of the root of the array's mean square,
// as a sum errs in proportion to its terms. Float32 sums of a thousand terms in two orders: 1e-5, and 1e-12
// in float64. Of BF16: both round a float32 that differs by so little, so they are one step apart at most,
// 2^-7 of the value. That is for the worst of many elements; all together, in an array of a thousand or more,
// err a quarter as much.
struct Tolerance {
  double noise = 1e-5;
  double absolute = 0;  // where a result is what is left of numbers around 1
  template <typename V>
  [[nodiscard]] double OfValue() const {
    return std::is_same_v<V, BF16> ? 1.0 / 128 : OfArray<V>();
  }
  template <typename V>
  [[nodiscard]] double OfArray() const {
    return std::is_same_v<V, double> ? 1e-12 : noise;
  }
};

template <typename Args>
struct Case;

struct Plain {
  template <typename Args>
  void Prepare(Device&, Args&) {}  // what a device makes for the kernel
  // Items of the outputs that are not compared.
  template <typename Args>
  std::vector<bool> Skipped(const Args&) {
    return {};
  }
  Tolerance tolerance;
};

template <typename T>
struct Case<RmsNormArgs<T>> : Plain {
  RmsNormArgs<T> Make(Draws& d) {
    RmsNormArgs<T> a{.rows = d.Size(9), .d = d.Size(600), .eps = 1e-5F};
    a.x = d.Noise<T>(a.rows * a.d);
    if (d.Some()) a.add = d.Noise<T>(a.rows * a.d), a.x_out = d.Some() ? const_cast<T*>(a.x) : d.Wanted<T>();
    if (d.Some()) a.rstd = d.Wanted<float>();
    return a;
  }
};
template <typename T>
struct Case<RmsNormBackwardArgs<T>> : Plain {
  RmsNormBackwardArgs<T> Make(Draws& d) {
    RmsNormBackwardArgs<T> a{.rows = d.Size(70), .d = d.Size(300)};
    a.rstd = d.Between(a.rows, 0.5, 2);
    if (d.Some()) a.dx_copy = d.Wanted<T>();
    if (d.Some()) a.dweight = d.Noise<float>(a.d);
    return a;
  }
};

// A table of rotations and who uses which row.
template <typename Args>
void Turns(Draws& d, int64_t rows, Args& a) {
  a.table_rows = d.Size(50);
  const int64_t n = a.table_rows * a.head_size / 2;
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < n; ++i) {
    const double angle = 6.3 * d.rng.Uniform();
    cos.push_back(static_cast<float>(std::cos(angle))), sin.push_back(static_cast<float>(std::sin(angle)));
  }
  a.cos = d.Keep(std::move(cos)), a.sin = d.Keep(std::move(sin));
  a.positions = d.Ids(rows, a.table_rows);
}
template <typename Args>
void Heads(Draws& d, Args& a) {
  constexpr int64_t kSizes[] = {8, 16, 24, 32, 64, 80, 96, 128};
  a.kv_heads = d.rng.InRange(1, 3);
  a.heads = a.kv_heads * d.rng.InRange(1, 5);
  a.head_size = kSizes[d.rng.Below(8)];
}
template <typename T>
struct Case<RotaryArgs<T>> : Plain {
  RotaryArgs<T> Make(Draws& d) {
    RotaryArgs<T> a{.rows = d.Size(40), .eps = 1e-6F};
    Heads(d, a);
    if (d.Some()) a.head_size = 2 * d.Size(150);
    a.slot_count = a.rows + d.Size(20);
    if (d.Some()) a.bias = d.Noise<T>((a.heads + 2 * a.kv_heads) * a.head_size);
    if (d.Some()) a.q_norm = d.Noise<T>(a.head_size);
    if (d.Some()) a.k_norm = d.Noise<T>(a.head_size);
    Turns(d, a.rows, a);
    a.slots = d.Keep(d.Distinct(a.rows, a.slot_count));
    return a;
  }
};
template <typename T>
struct Case<HeadNormBackwardArgs<T>> : Plain {
  HeadNormBackwardArgs<T> Make(Draws& d) {
    HeadNormBackwardArgs<T> a{.rows = d.Size(150), .eps = 1e-6F};
    Heads(d, a);
    if (d.Some()) a.head_size = 2 * d.Size(150);
    if (d.Some()) a.bias = d.Noise<T>((a.heads + 2 * a.kv_heads) * a.head_size);
    return a;
  }
};

// Rows of sequences that go on from any earlier one.
struct Sequences {
  std::vector<int32_t> first_run, lengths;
  std::vector<KvRun> runs;
  int64_t slots = 0;

  // all: every slot is a row, in order; else the last rows of a sequence, and slots in pages that stand
  // anywhere.
  Sequences(Draws& d, bool all) {
    constexpr int64_t kPage = 8, kMostSlots = 2000;
    std::vector<int32_t> page = d.Distinct(kMostSlots / kPage, kMostSlots / kPage);
    std::vector<std::vector<int32_t>> sequences;
    for (int64_t n = d.rng.InRange(1, 5); n > 0; --n) {
      std::vector<int32_t> of;
      if (!sequences.empty() && d.rng.Chance(0.7)) {
        of = sequences[static_cast<size_t>(d.rng.Below(static_cast<int64_t>(sequences.size())))];
        of.resize(static_cast<size_t>(d.rng.InRange(1, static_cast<int64_t>(of.size()))));
      }
      const auto shared = static_cast<int64_t>(of.size());
      for (int64_t own = d.Size(d.rng.Chance(0.2) ? 300 : 40); own > 0; --own, ++slots)
        of.push_back(static_cast<int32_t>(
            all ? slots : page[static_cast<size_t>(slots / kPage)] * kPage + slots % kPage));
      const auto length = static_cast<int64_t>(of.size()), first = static_cast<int64_t>(runs.size());
      for (size_t i = 0; i < of.size(); ++i) {
        if (i > 0 && of[i] == runs.back().start + runs.back().count && !d.rng.Chance(0.02)) {
          ++runs.back().count;
        } else {
          runs.push_back({of[i], 1});
        }
        if (d.rng.Chance(0.01)) runs.push_back({0, 0});
      }
      for (int64_t at = all || d.Some() ? shared : length - 1; at < length; ++at) {
        first_run.push_back(static_cast<int32_t>(first));
        lengths.push_back(static_cast<int32_t>(at + 1));
      }
      sequences.push_back(std::move(of));
    }
    if (!all) slots = kMostSlots;
  }
  [[nodiscard]] RowRuns Arrays() const {
    return {.rows = static_cast<int64_t>(lengths.size()),
            .run_count = static_cast<int64_t>(runs.size()),
            .slot_count = slots,
            .first_run = first_run.data(),
            .lengths = lengths.data(),
            .runs = runs.data()};
  }
  [[nodiscard]] RowRunsOfHost OnHost() const { return {first_run, lengths, runs}; }
};
// The CPU's kernels of BF16 round the probabilities before they weigh anything, and the gradients of the
// scores: 2^-9 of each term, where the terms may be many times what they sum up to.
template <typename T>
constexpr double kRoundedWeights = std::is_same_v<T, BF16> ? 8e-2 : 3e-5;

template <typename T>
struct Case<AttentionArgs<T>> : Plain {
  std::unique_ptr<Sequences> sequences;
  std::vector<std::unique_ptr<AttentionWork>> work;
  AttentionArgs<T> Make(Draws& d) {
    AttentionArgs<T> a;
    Heads(d, a);
    sequences = std::make_unique<Sequences>(d, /*all=*/false);
    a.keys = sequences->Arrays();
    a.q = d.Noise<T>(a.keys.rows * a.heads * a.head_size, d.Some() ? 1 : 3);
    if (d.Some()) a.lse = d.Wanted<float>();
    tolerance.noise = kRoundedWeights<T>;
    return a;
  }
  void Prepare(Device& device, AttentionArgs<T>& a) {
    work.push_back(device.PlanAttention(sequences->OnHost(), {a.heads, a.kv_heads, a.head_size}));
    a.work = work.back().get();
  }
};
template <typename T>
struct Case<AttentionBackwardArgs<T>> : Plain {
  std::unique_ptr<Sequences> sequences;
  std::vector<std::unique_ptr<AttentionWork>> work;
  AttentionBackwardArgs<T> Make(Draws& d) {
    AttentionBackwardArgs<T> a;
    Heads(d, a);
    sequences = std::make_unique<Sequences>(d, /*all=*/true);
    a.keys = sequences->Arrays();
    const int64_t wide = a.keys.rows * a.heads * a.head_size, narrow = a.keys.rows * a.kv_heads * a.head_size;
    a.q = d.Noise<T>(wide), a.k = d.Noise<T>(narrow), a.v = d.Noise<T>(narrow);
    auto* out = d.Noise<T>(wide);
    auto* lse = d.Between(a.keys.rows * a.heads, 0, 0);
    CpuDevice cpu;  // what the forward left
    const HeadShape shape{a.heads, a.kv_heads, a.head_size};
    const auto plan = cpu.PlanAttention(sequences->OnHost(), shape);
    cpu.Attention(AttentionArgs<T>{.heads = a.heads,
                                   .kv_heads = a.kv_heads,
                                   .head_size = a.head_size,
                                   .keys = a.keys,
                                   .q = a.q,
                                   .k = a.k,
                                   .v = a.v,
                                   .out = out,
                                   .lse = lse,
                                   .work = plan.get()});
    a.out = out, a.lse = lse;
    Turns(d, a.keys.rows, a);
    tolerance.noise = kRoundedWeights<T>;
    return a;
  }
  void Prepare(Device& device, AttentionBackwardArgs<T>& a) {
    const std::pair<int64_t, int64_t> all{0, a.keys.rows};
    work.push_back(device.PlanAttentionBackward(sequences->OnHost(), {&all, 1},
                                                {a.heads, a.kv_heads, a.head_size, kDTypeOf<T>}));
    a.work = work.back().get();
  }
};

template <typename T>
struct Case<AddBiasArgs<T>> : Plain {
  AddBiasArgs<T> Make(Draws& d) { return {.rows = d.Size(20), .n = d.Size(300)}; }
};
template <typename T>
struct Case<SwiGluArgs<T>> : Plain {
  SwiGluArgs<T> Make(Draws& d) {
    SwiGluArgs<T> a{.rows = d.Size(20), .ff = d.Size(300)};
    a.gate_up = d.Noise<T>(a.rows * 2 * a.ff, 5);
    return a;
  }
};
template <typename T>
struct Case<SwiGluBackwardArgs<T>> : Plain {
  SwiGluBackwardArgs<T> Make(Draws& d) {
    SwiGluBackwardArgs<T> a{.rows = d.Size(20), .ff = d.Size(300)};
    auto* gate_up = d.Noise<T>(a.rows * 2 * a.ff, 3);
    a.gate_up = gate_up;
    if (d.Some()) a.dgate_up = gate_up;
    return a;
  }
};

template <typename T>
struct Case<TokenLogProbArgs<T>> : Plain {
  TokenLogProbArgs<T> Make(Draws& d) {
    TokenLogProbArgs<T> a{.rows = d.Size(12), .vocab = d.Size(d.Some() ? 40 : 3000)};
    a.logits = d.Logits<T>(a.rows, a.vocab);
    tolerance.absolute = 2e-6;
    int32_t* ids = d.Ids(a.rows, a.vocab);
    if (d.rng.Chance(0.2)) ids[d.rng.Below(a.rows)] = -1;
    a.ids = ids;
    a.inv_temperature = d.Some() ? 1.0F : InverseTemperature(d.Some() ? 0.7F : 1e-39F);
    if (d.Some()) a.entropy = d.Wanted<float>();
    if (d.Some()) a.lse = d.Wanted<float>();
    return a;
  }
};
template <typename T>
struct Case<TokenLogProbBackwardArgs<T>> : Plain {
  TokenLogProbBackwardArgs<T> Make(Draws& d) {
    TokenLogProbBackwardArgs<T> a{.rows = d.Size(12), .vocab = d.Size(d.Some() ? 40 : 3000)};
    a.logits = d.Logits<T>(a.rows, a.vocab);
    tolerance.absolute = 2e-6;
    a.ids = d.IdsOrNone(a.rows, a.vocab);
    a.inv_temperature = d.Some() ? 1.0F : 1.0F / 0.7F;
    auto* logprob = d.Between(a.rows, 0, 0);
    auto* entropy = d.Between(a.rows, 0, 0);
    auto* lse = d.Between(a.rows, 0, 0);
    CpuDevice().TokenLogProb(TokenLogProbArgs<T>{.rows = a.rows,
                                                 .vocab = a.vocab,
                                                 .logits = a.logits,
                                                 .ids = a.ids,
                                                 .inv_temperature = a.inv_temperature,
                                                 .logprob = logprob,
                                                 .entropy = entropy,
                                                 .lse = lse});
    const auto sparse = [&] {  // tokens that do not count
      auto* slopes = d.Noise<float>(a.rows);
      for (int64_t r = 0; r < a.rows; ++r) slopes[r] = d.Some() ? 0.0F : slopes[r];
      return slopes;
    };
    a.lse = lse, a.dlogprob = sparse();
    if (d.Some()) a.entropy = entropy, a.dentropy = sparse();
    return a;
  }
};

template <typename T>
struct Case<SampleArgs<T>> : Plain {
  SampleArgs<T> Make(Draws& d) {
    SampleArgs<T> a{.rows = d.Size(30), .logit_rows = d.Size(12), .vocab = d.Size(d.Some() ? 40 : 3000)};
    a.logits = d.Logits<T>(a.logit_rows, a.vocab);
    tolerance.absolute = 1e-5;
    a.source = d.Ids(a.rows, a.logit_rows);
    std::vector<SampleRow> how(static_cast<size_t>(a.rows));
    constexpr float kTemperatures[] = {0.0F, 0.3F, 0.7F, 1.0F, 2.0F, 1e-39F},
                    kTopP[] = {0.0F, 0.3F, 0.9F, 0.999F}, kMinP[] = {0.01F, 0.5F, 1.0F};
    for (SampleRow& row : how) {
      row.temperature = kTemperatures[d.rng.Below(6)];
      if (d.Some()) row.top_k = static_cast<int32_t>(d.rng.InRange(1, a.vocab + 2));
      if (d.Some()) row.top_p = kTopP[d.rng.Below(4)];
      if (d.Some()) row.min_p = kMinP[d.rng.Below(3)], row.log_min_p = std::log(row.min_p);
      row.uniform = SampleUniform(d.rng.Next(), 0, 0, 0);
      if (d.rng.Chance(0.1)) row.uniform = d.Some() ? 0.0F : 0x1.fffffep-1F;
    }
    a.how = d.Keep(std::move(how));
    return a;
  }
  // Rows that draw another token, or keep others, a rounding away.
  std::vector<bool> Skipped(const SampleArgs<T>& given) {
    constexpr float kNear = 1e-5F;
    CpuDevice cpu;
    const auto rows = static_cast<size_t>(given.rows);
    std::vector<int32_t> first;
    std::vector<float> first_kept;
    std::vector<bool> skipped(rows, false);
    for (const float u : {-kNear, kNear}) {
      for (const float p : {-kNear, kNear}) {
        std::vector<SampleRow> how(given.how, given.how + given.rows);
        for (SampleRow& row : how) {
          row.uniform = std::clamp(row.uniform + u, 0.0F, 0x1.fffffep-1F);
          if (row.top_p < 1) row.top_p = std::max(row.top_p + p, 0.0F);
        }
        std::vector<int32_t> ids(rows);
        std::vector<float> kept(rows), logprob(rows);
        SampleArgs<T> a = given;
        a.how = how.data(), a.ids = ids.data(), a.log_kept = kept.data(), a.logprob = logprob.data();
        cpu.Sample(a);
        if (first.empty()) first = ids, first_kept = kept;
        for (size_t r = 0; r < rows; ++r)
          skipped[r] = skipped[r] || ids[r] != first[r] || kept[r] != first_kept[r];
      }
    }
    drawn += given.rows, left_out += std::count(skipped.begin(), skipped.end(), true);
    EXPECT_TRUE(drawn < 100 || left_out < drawn / 5) << "most rows should be compared";
    return skipped;
  }
  static inline int64_t drawn = 0, left_out = 0;
};

template <typename T>
struct Case<ColumnSumArgs<T>> : Plain {
  ColumnSumArgs<T> Make(Draws& d) { return {.rows = d.Size(200), .n = d.Size(100)}; }
};
template <typename T>
struct Case<GatherRowsArgs<T>> : Plain {
  GatherRowsArgs<T> Make(Draws& d) {
    GatherRowsArgs<T> a{.rows = d.Size(60), .d = d.Size(100), .table_rows = d.Size(40)};
    a.ids = d.IdsOrNone(a.rows, a.table_rows);
    return a;
  }
};
template <typename T>
struct Case<ScatterAddRowsArgs<T>> : Plain {
  ScatterAddRowsArgs<T> Make(Draws& d) {
    ScatterAddRowsArgs<T> a{.rows = d.Size(60), .d = d.Size(100), .table_rows = d.Size(40)};
    a.ids = d.IdsOrNone(a.rows, a.table_rows);
    return a;
  }
};
template <typename T>
struct Case<WidenArgs<T>> : Plain {
  WidenArgs<T> Make(Draws& d) { return {.n = d.Size(9000)}; }
};
template <typename T>
struct Case<NarrowArgs<T>> : Plain {
  NarrowArgs<T> Make(Draws& d) {
    NarrowArgs<T> a{.n = d.Size(9000)};
    auto* x = d.Noise<float>(a.n);
    for (const float special : {NAN, INFINITY, -INFINITY, 3.4e38F, -0.0F}) x[d.rng.Below(a.n)] = special;
    a.x = x;
    return a;
  }
};

template <typename Args>
Args ProductSizes(Draws& d) {
  return {.rows = d.Size(d.Some() ? 300 : 20), .n = d.Size(200), .k = d.Size(200)};
}
// Products of BF16 add up in float32 on every device, but tensor cores cut off where others round.
template <typename T>
constexpr double kSummedProduct = std::is_same_v<T, BF16> ? 1e-4 : 1e-5;
template <typename T>
struct Case<MultiplyArgs<T>> : Plain {
  MultiplyArgs<T> Make(Draws& d) { return ProductSizes<MultiplyArgs<T>>(d); }
};
template <typename T>
struct Case<MultiplyBackArgs<T>> : Plain {
  MultiplyBackArgs<T> Make(Draws& d) { return ProductSizes<MultiplyBackArgs<T>>(d); }
};
template <typename T>
struct Case<MultiplyBackWeightArgs<T>> : Plain {
  MultiplyBackWeightArgs<T> Make(Draws& d) {
    tolerance.noise = kSummedProduct<T>;
    return ProductSizes<MultiplyBackWeightArgs<T>>(d);
  }
};
template <typename T>
struct Case<RouterArgs<T>> : Plain {
  RouterArgs<T> Make(Draws& d) { return {.rows = d.Size(40), .d = d.Size(300), .experts = d.Size(64)}; }
};

template <typename Args>
Args GroupedSizes(Draws& d) {
  Args a{.groups = d.Size(9), .n = d.Size(60), .k = d.Size(60)};
  std::vector<int32_t> begin = {0};
  for (int64_t g = 0; g < a.groups; ++g)
    begin.push_back(begin.back() + static_cast<int32_t>(d.rng.Chance(0.3) ? 0 : d.Size(40)));
  a.rows = begin.back();
  a.begin = d.Keep(std::move(begin));
  return a;
}
template <typename T>
struct Case<GroupedMultiplyArgs<T>> : Plain {
  GroupedMultiplyArgs<T> Make(Draws& d) { return GroupedSizes<GroupedMultiplyArgs<T>>(d); }
};
template <typename T>
struct Case<GroupedMultiplyBackArgs<T>> : Plain {
  GroupedMultiplyBackArgs<T> Make(Draws& d) { return GroupedSizes<GroupedMultiplyBackArgs<T>>(d); }
};
template <typename T>
struct Case<GroupedMultiplyBackWeightArgs<T>> : Plain {
  GroupedMultiplyBackWeightArgs<T> Make(Draws& d) {
    tolerance.noise = kSummedProduct<T>;
    return GroupedSizes<GroupedMultiplyBackWeightArgs<T>>(d);
  }
};

template <typename Args>
Args PairSizes(Draws& d) {
  Args a{.rows = d.Size(40), .d = d.Size(100), .k = d.rng.InRange(1, 8)};
  a.place = d.Keep(d.Distinct(a.rows * a.k, a.rows * a.k));
  return a;
}
template <typename T>
struct Case<CombineExpertsArgs<T>> : Plain {
  CombineExpertsArgs<T> Make(Draws& d) {
    auto a = PairSizes<CombineExpertsArgs<T>>(d);
    if (d.Some()) a.gate = d.Between(a.rows, 0, 1), a.shared = d.Noise<T>(a.rows * a.d);
    return a;
  }
};
template <typename T>
struct Case<CombineExpertsBackwardArgs<T>> : Plain {
  CombineExpertsBackwardArgs<T> Make(Draws& d) {
    auto a = PairSizes<CombineExpertsBackwardArgs<T>>(d);
    if (d.Some()) {
      a.gate = d.Between(a.rows, 0, 1), a.shared = d.Noise<T>(a.rows * a.d);
      a.dshared = d.Wanted<T>(), a.dgate = d.Wanted<float>();
    }
    return a;
  }
};
template <typename T>
struct Case<GateBackwardArgs<T>> : Plain {
  GateBackwardArgs<T> Make(Draws& d) {
    GateBackwardArgs<T> a{.rows = d.Size(40), .d = d.Size(100)};
    a.gate = d.Between(a.rows, 0, 1);
    return a;
  }
};
template <typename T>
struct Case<SumExpertsArgs<T>> : Plain {
  SumExpertsArgs<T> Make(Draws& d) {
    auto a = PairSizes<SumExpertsArgs<T>>(d);
    auto* shared = d.Noise<T>(a.rows * a.d);
    if (d.Some()) a.shared = shared, a.out = d.Some() ? shared : nullptr;
    return a;
  }
};

// One band that is all of y, or up to three with columns of nobody between them.
template <typename Args>
Args BandSizes(Draws& d) {
  Args a;
  a.rows = d.Size(d.Some() ? 300 : 20), a.rank = d.Size(40), a.scale = d.Some() ? 1.0F : 0.75F;
  a.bands = d.Some() ? 1 : d.rng.InRange(1, Args::kMost);
  for (int64_t i = 0; i < a.bands; ++i) {
    a.first[i] = a.width + (a.bands == 1 || d.Some() ? 0 : d.Size(20));
    a.n[i] = d.Size(d.rng.Chance(0.2) ? 900 : 200);
    a.width = a.first[i] + a.n[i];
  }
  if (a.bands > 1 && d.Some()) a.width += 7;
  return a;
}
template <typename T>
struct Case<LowRankArgs<T>> : Plain {
  LowRankArgs<T> Make(Draws& d) { return BandSizes<LowRankArgs<T>>(d); }
};
template <typename T>
struct Case<AddLowRankArgs<T>> : Plain {
  AddLowRankArgs<T> Make(Draws& d) { return BandSizes<AddLowRankArgs<T>>(d); }
};
template <typename T>
struct Case<LowRankBackWeightArgs<T>> : Plain {
  LowRankBackWeightArgs<T> Make(Draws& d) {
    tolerance.noise = kSummedProduct<T>;
    return BandSizes<LowRankBackWeightArgs<T>>(d);
  }
};

template <typename T>
struct Case<AdamWArgs<T>> : Plain {
  AdamWArgs<T> Make(Draws& d) {
    AdamWArgs<T> a{.n = d.Size(3000), .beta1 = 0.9F, .rest1 = 0.1F, .beta2 = 0.95F, .rest2 = 0.05F};
    a.eps = 1e-8F, a.step = 1e-3F, a.root = 1.5F;
    if (d.Some()) a.decay = 0.99F;
    // Far from zero, where an update could leave little of a weight.
    std::vector<double> weights;
    for (int64_t i = 0; i < a.n; ++i) weights.push_back((d.Some() ? 1 : -1) * (0.5 + d.rng.Uniform()));
    a.weights = d.Keep(ToType<T>(weights));
    if constexpr (std::is_same_v<T, BF16>) {
      std::vector<int16_t> rest;
      for (int64_t i = 0; i < a.n; ++i) rest.push_back(static_cast<int16_t>(d.rng.InRange(-32768, 32767)));
      a.rest = d.Keep(std::move(rest));
    }
    a.v = d.Between(a.n, 0.01, 1);
    a.square_sum = d.Keep(std::vector<double>{d.rng.Chance(0.2) ? NAN : 9.0});
    a.max_grad_norm = d.Some() ? 0 : d.Some() ? 1 : 10;
    return a;
  }
};
template <>
struct Case<SquareSumArgs> : Plain {
  SquareSumArgs Make(Draws& d) {
    SquareSumArgs a{.n = d.Size(d.rng.Chance(0.2) ? 200000 : 300)};
    if (d.rng.Chance(0.2)) {
      auto* x = d.Noise<float>(a.n);
      x[d.rng.Below(a.n)] = d.Some() ? NAN : INFINITY;
      a.x = x;
    }
    return a;
  }
};

template <>
struct Case<SaltedSumsArgs> : Plain {
  SaltedSumsArgs Make(Draws& d) {
    SaltedSumsArgs a{.words = d.Size(d.rng.Chance(0.2) ? 100000 : 300)};
    a.bucket_words = d.Size(2 * a.words);
    if (a.buckets() > 300) a.bucket_words = 1 + a.words / 300;
    std::vector<uint64_t> words;
    for (int64_t i = 0; i < a.words; ++i) words.push_back(d.rng.Next());
    a.x = d.Keep(std::move(words));
    return a;
  }
};

// Logits of a router in steps of an eighth: equal ones are often, near ones are not there.
float* RouterLogits(Draws& d, int64_t rows, int64_t experts, bool special) {
  auto* logits = d.Between(rows * experts, 0, 0);
  for (int64_t i = 0; i < rows * experts; ++i) logits[i] = static_cast<float>(d.rng.InRange(-16, 16)) / 8;
  if (special && d.Some()) logits[d.rng.Below(rows * experts)] = d.Some() ? NAN : -INFINITY;
  return logits;
}
template <>
struct Case<RouteArgs> : Plain {
  RouteArgs Make(Draws& d) {
    RouteArgs a{.rows = d.Size(40), .experts = d.Size(64), .renormalize = d.Some()};
    a.k = d.rng.InRange(1, std::min<int64_t>(a.experts, 8));
    a.probs = RouterLogits(d, a.rows, a.experts, /*special=*/true);
    if (d.Some()) {
      auto* replay = d.Chosen(a.rows, a.k, a.experts);
      for (int64_t r = 0; r < a.rows; ++r) replay[r * a.k] = d.Some() ? -1 : replay[r * a.k];
      a.replay = replay;
    }
    return a;
  }
};
template <>
struct Case<GroupRowsArgs> : Plain {
  GroupRowsArgs Make(Draws& d) {
    GroupRowsArgs a{.rows = d.Size(60), .experts = d.Size(64)};
    a.k = d.rng.InRange(1, std::min<int64_t>(a.experts, 8));
    a.chosen = d.Chosen(a.rows, a.k, a.experts);
    return a;
  }
};
template <>
struct Case<SigmoidArgs> : Plain {
  SigmoidArgs Make(Draws& d) {
    SigmoidArgs a{.n = d.Size(300)};
    a.x = d.Noise<float>(a.n, 10);
    return a;
  }
};
template <>
struct Case<RouteBackwardArgs> : Plain {
  RouteBackwardArgs Make(Draws& d) {
    RouteBackwardArgs a{.rows = d.Size(40), .experts = d.Size(64), .renormalize = d.Some()};
    a.k = d.rng.InRange(1, std::min<int64_t>(a.experts, 8));
    auto* probs = RouterLogits(d, a.rows, a.experts, /*special=*/false);
    auto* weights = d.Between(a.rows * a.k, 0, 0);
    auto* chosen = d.Ids(a.rows * a.k, 1);
    CpuDevice().Route({.rows = a.rows,
                       .experts = a.experts,
                       .k = a.k,
                       .probs = probs,
                       .renormalize = a.renormalize,
                       .chosen = chosen,
                       .weights = weights});
    a.probs = probs, a.weights = weights, a.chosen = chosen;
    return a;
  }
};
template <>
struct Case<AddProbsArgs> : Plain {
  AddProbsArgs Make(Draws& d) {
    AddProbsArgs a{.rows = d.Size(200), .experts = d.Size(64)};
    a.probs = d.Between(a.rows * a.experts, 0, 1);
    return a;
  }
};

// The names of Fields(), with what a visitor does with an array in one place: self.Array(p, n, reads,
// writes).
template <typename Self>
struct EachArray {
  template <typename V>
  void In(V*& p, int64_t n) {
    self().Array(p, n, true, false);
  }
  template <typename V>
  void Out(V*& p, int64_t n) {
    self().Array(p, n, false, true);
  }
  template <typename V>
  void InOut(V*& p, int64_t n) {
    self().Array(p, n, true, true);
  }
  template <typename V>
  void MaybeIn(V*& p, int64_t n) {
    if (p != nullptr) In(p, n);
  }
  template <typename V>
  void MaybeOut(V*& p, int64_t n) {
    if (p != nullptr) Out(p, n);
  }
  template <typename V>
  void MaybeInOut(V*& p, int64_t n) {
    if (p != nullptr) InOut(p, n);
  }
  Self& self() { return static_cast<Self&>(*this); }
};

// Noise for inputs that a case left open, memory of the host for outputs.
struct Fill : EachArray<Fill> {
  explicit Fill(Draws& d) : draws(d) {}
  Draws& draws;
  template <typename V>
  void Array(V*& p, int64_t n, bool reads, bool) {
    using Value = std::remove_const_t<V>;
    if (p != nullptr || n == 0) return;
    if constexpr (kIsReal<Value>) {
      p = draws.Noise<Value>(n);
    } else {
      TP_CHECK(!reads) << "a case gives no values for an array of indices";
      p = draws.Keep(std::vector<Value>(static_cast<size_t>(n)));
    }
  }
};

// Moves the arrays to a device. The same address twice stays one array.
struct Place : EachArray<Place> {
  Place(Device& on, int outputs) : device(on), garbage(outputs) {}
  Device& device;
  int garbage;  // that outputs begin with
  std::map<const void*, std::shared_ptr<Buffer>> arrays;
  std::set<const void*> written;
  template <typename V>
  void Array(V*& p, int64_t n, bool reads, bool writes) {
    if (n == 0) return;
    using Value = std::remove_const_t<V>;
    if (writes) written.insert(p);
    std::shared_ptr<Buffer>& memory = arrays[p];
    if (memory == nullptr) {
      std::vector<Value> values(static_cast<size_t>(n));
      if (reads) {
        std::memcpy(static_cast<void*>(values.data()), p, values.size() * sizeof(V));
      } else {
        std::memset(static_cast<void*>(values.data()), garbage, values.size() * sizeof(V));
      }
      memory = device.Put(std::span<const Value>(values));
    }
    p = static_cast<V*>(memory->data());
  }
  template <typename V>
  std::vector<V> Read(const V* host, int64_t n) {
    return device.Read(static_cast<const V*>(arrays.at(host)->data()), n);
  }
};

// Compares what two devices left, by the addresses of the host.
struct Compare : EachArray<Compare> {
  Compare(Place& a, Place& b, const Tolerance& t, std::vector<bool> skip)
      : left(a), right(b), tolerance(t), skipped(std::move(skip)) {}
  Place &left, &right;
  const Tolerance& tolerance;
  const std::vector<bool> skipped;
  int field = 0;
  template <typename V>
  void Array(V*& p, int64_t n, bool, bool) {
    using Value = std::remove_const_t<V>;
    ++field;
    if (n == 0) return;
    const std::vector<Value> a = left.Read<Value>(p, n), b = right.Read<Value>(p, n);
    if (!left.written.contains(p)) {
      const size_t bytes = a.size() * sizeof(Value);
      EXPECT_EQ(std::memcmp(a.data(), p, bytes), 0) << "the CPU wrote over input " << field;
      EXPECT_EQ(std::memcmp(b.data(), p, bytes), 0) << right.device.name() << " wrote over input " << field;
      return;
    }
    if constexpr (std::is_arithmetic_v<Value> || kIsReal<Value>) Values(a, b);
  }
  template <typename V>
  void Values(const std::vector<V>& a, const std::vector<V>& b) const {
    if constexpr (std::is_same_v<V, int16_t>) return LowerHalves(a, b);
    double squares = 0, errors = 0;
    for (const V& v : a) squares += std::isfinite(ToDouble(v)) ? ToDouble(v) * ToDouble(v) : 0;
    const double root = std::sqrt(squares / static_cast<double>(a.size()));
    for (size_t i = 0; i < a.size(); ++i) {
      if (!skipped.empty() && skipped[i]) continue;
      const double x = ToDouble(a[i]), y = ToDouble(b[i]);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      const double most = kIsReal<V> ? tolerance.OfValue<V>() * std::fabs(x) + tolerance.OfArray<V>() * root +
                                           tolerance.absolute
                                     : 0;
      ASSERT_LE(std::fabs(x - y), most) << "array " << field << ", element " << i << " of " << a.size()
                                        << ": the CPU has " << x << ", " << right.device.name() << " " << y;
      errors += (x - y) * (x - y);
    }
    if constexpr (kIsReal<V>) {
      const double of_all = (tolerance.OfValue<V>() + tolerance.OfArray<V>()) / 4 * root + tolerance.absolute;
      const double of_these = std::sqrt(errors / static_cast<double>(a.size()));
      EXPECT_TRUE(a.size() < 1000 || of_these <= of_all)
          << "array " << field << ": the difference of all elements is " << of_these << ", at most "
          << of_all;
    }
  }

  // Of floats whose upper halves are elsewhere: a few of a float's last places apart.
  void LowerHalves(const std::vector<int16_t>& a, const std::vector<int16_t>& b) const {
    for (size_t i = 0; i < a.size(); ++i) {
      const auto apart = static_cast<int16_t>(uint16_t(a[i]) - uint16_t(b[i]));
      ASSERT_LE(std::abs(apart), 8) << "array " << field << ", element " << i << ": the CPU has " << a[i]
                                    << ", LibTorch " << b[i];
    }
  }
};

std::shared_ptr<Device> Other() {
  if (std::getenv("TIDEPOOL_TEST_DEVICE") != nullptr) return TestDevice();
  return std::make_shared<TorchDevice>(c10::kCPU);
}

template <typename Args, typename Kernel>
void Agree(const char* type, const Kernel& kernel) {
  for (int64_t seed = 0; seed < FuzzSeeds(12); ++seed) {
    SCOPED_TRACE(testing::Message() << type << " seed " << seed);
    Draws draws(static_cast<uint64_t>(seed));
    Case<Args> the_case;
    Args args = the_case.Make(draws);
    Fill fill(draws);
    args.Fields(fill);
    CpuDevice cpu;
    const std::shared_ptr<Device> other = Other();
    Place on_cpu(cpu, 0xA5), on_other(*other, 0x5A);
    for (Place* place : {&on_cpu, &on_other}) {
      Args placed = args;
      placed.Fields(*place);
      the_case.Prepare(place->device, placed);
      kernel(place->device, placed);
    }
    Compare compare(on_cpu, on_other, the_case.tolerance, the_case.Skipped(args));
    args.Fields(compare);
    if (testing::Test::HasFatalFailure()) return;
  }
}

#define TIDEPOOL_TYPED(Kernel)                                                         \
  TEST(AgreementTest, Kernel) {                                                        \
    const auto kernel = [](Device& device, const auto& args) { device.Kernel(args); }; \
    Agree<Kernel##Args<float>>("float32", kernel);                                     \
    Agree<Kernel##Args<BF16>>("bfloat16", kernel);                                     \
  }
#define TIDEPOOL_PLAIN(Kernel)                                                                             \
  TEST(AgreementTest, Kernel) {                                                                            \
    Agree<Kernel##Args>("float32", [](Device& device, const Kernel##Args& args) { device.Kernel(args); }); \
  }
TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

}  // namespace
}  // namespace tidepool::device
