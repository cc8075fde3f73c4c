// Attention against the CPU kernels on ragged batches over scattered slots, and the plans of
// attention_plan.h.

#include <algorithm>
#include <numeric>

#include "core/device/cpu/attention_plan.h"
#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

// Sequences whose keys lie in pages all over a cache; some share the pages of a prompt.
struct Batch {
  std::vector<int32_t> first_run, lengths;  // [rows]
  std::vector<device::KvRun> runs;
  int64_t slots = 0;
  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
};
// rows_max: rows of one sequence, its last ones; 1 is decode.
Batch RandomBatch(FuzzRng& rng, int64_t sequences, int64_t length_max, int64_t rows_max) {
  constexpr int64_t kPage = 16;
  Batch b;
  const int64_t pages = sequences * (length_max / kPage + 2) + 8;
  std::vector<int32_t> page(static_cast<size_t>(pages));
  std::iota(page.begin(), page.end(), 0);
  for (size_t i = page.size() - 1; i > 0; --i) {
    if (rng.Below(3) > 0)
      std::swap(page[i], page[static_cast<size_t>(rng.Below(static_cast<int64_t>(i) + 1))]);
  }
  b.slots = pages * kPage;
  size_t next = 0;
  std::vector<int32_t> prompt;  // pages that the next sequences begin with
  for (int64_t s = 0; s < sequences; ++s) {
    if (s % 3 == 0 || prompt.empty()) {
      prompt.clear();
      for (int64_t i = rng.Below(length_max / kPage); i > 0; --i) prompt.push_back(page[next++]);
    }
    std::vector<int32_t> mine = prompt;
    const int64_t length = rng.Between(static_cast<int64_t>(prompt.size()) * kPage + 1, length_max);
    while (static_cast<int64_t>(mine.size()) * kPage < length) mine.push_back(page[next++]);
    const auto first = static_cast<int32_t>(b.runs.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto count =
          static_cast<int32_t>(std::min<int64_t>(kPage, length - static_cast<int64_t>(i) * kPage));
      const auto start = static_cast<int32_t>(mine[i] * kPage);
      if (i > 0 && b.runs.back().start + b.runs.back().count == start) {
        b.runs.back().count += count;
      } else {
        b.runs.push_back({start, count});
      }
    }
    const int64_t rows = std::min(length, rng.Between(1, rows_max));
    for (int64_t r = length - rows; r < length; ++r) {
      b.first_run.push_back(first);
      b.lengths.push_back(static_cast<int32_t>(r + 1));
    }
  }
  return b;
}

template <typename T>
struct Problem {
  int64_t heads, kv_heads, size;
  std::vector<T> q, k, v;
  std::vector<T> out;      // the CPU's
  std::vector<float> lse;  // the CPU's
  [[nodiscard]] device::AttentionArgs<T> Cpu(const Batch& b) {
    return {.heads = heads,
            .kv_heads = kv_heads,
            .head_size = size,
            .keys = {.rows = b.rows(),
                     .run_count = static_cast<int64_t>(b.runs.size()),
                     .slot_count = b.slots,
                     .first_run = b.first_run.data(),
                     .lengths = b.lengths.data(),
                     .runs = b.runs.data()},
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .out = out.data(),
            .lse = lse.data()};
  }
};
template <typename T>
Problem<T> RandomProblem(FuzzRng& rng, const Batch& b, const std::vector<int64_t>& sizes,
                         const std::vector<int64_t>& groups = {1, 2, 3, 7}) {
  Problem<T> p;
  p.kv_heads = rng.Between(1, 2);
  p.heads = p.kv_heads * rng.OneOf(groups);
  p.size = rng.OneOf(sizes);
  p.q = RandomValues<T>(rng, b.rows() * p.heads * p.size, 2.0F);
  p.k = RandomValues<T>(rng, b.slots * p.kv_heads * p.size, 2.0F);
  p.v = RandomValues<T>(rng, b.slots * p.kv_heads * p.size);
  p.out.resize(p.q.size());
  p.lse.resize(static_cast<size_t>(b.rows() * p.heads));
  const device::AttentionPlan plan =
      device::PlanAttention(b.first_run, b.lengths, b.runs, {p.heads, p.kv_heads, p.size});
  std::vector<float> scratch(static_cast<size_t>(device::AttentionScratch(p.size)));
  device::AttentionTileArgs<T> a{p.Cpu(b)};
  a.tile_rows = plan.tile_rows.data();
  for (const device::AttentionTile& tile : plan.tiles)  // of one thread: no parts
    device::KernelsFor<T>(device::BestIsa()).attention(tile, a, scratch.data());
  return p;
}

template <typename T>
struct OnDevice {  // a problem's arrays
  OnDevice(const Problem<T>& p, const Batch& b)
      : q(p.q), k(p.k), v(p.v), first_run(b.first_run), lengths(b.lengths), runs(b.runs) {
    lengths.Settle();
    runs.Settle();
  }
  DeviceArray<T> q, k, v;
  DeviceArray<int32_t> first_run, lengths;
  DeviceArray<device::KvRun> runs;
  device::AttentionArgs<T> Args(const Problem<T>& p, T* out, float* lse) const {
    return {.heads = p.heads,
            .kv_heads = p.kv_heads,
            .head_size = p.size,
            .keys = {.rows = static_cast<int64_t>(p.lse.size()) / p.heads,
                     .first_run = first_run.data(),
                     .lengths = lengths.data(),
                     .runs = runs.data()},
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .out = out,
            .lse = lse};
  }
};

// Weights are rounded to bfloat16 before they meet the values, whose size is at most 1: 2^-9 of the sum of |p
// v|.
template <typename T>
constexpr float kOutOff = std::is_same_v<T, float> ? 2e-5F : 4e-3F;
template <typename T>
constexpr float kLseOff = 5e-5F;

// The work of a batch whose rows `rows` are planned for decode and the others for prefill.
class Work {
 public:
  Work(const Batch& b, const std::vector<int32_t>& decoded, const std::vector<int32_t>& prefilled,
       int64_t rows_max)
      : plan_(DecodePlanner().Plan(decoded, b.first_run, b.lengths, b.runs)),
        prefill_(PlanPrefill(prefilled, b.first_run, b.lengths, rows_max)),
        row_(decoded),
        order_(plan_.order),
        first_partial_(plan_.first_partial),
        item_(plan_.items),
        prefill_item_(prefill_) {
    work_.decode = {.rows = static_cast<int64_t>(decoded.size()),
                    .items = static_cast<int64_t>(plan_.items.size()),
                    .partials = plan_.partials,
                    .row = row_.data(),
                    .item = item_.data(),
                    .order = order_.data(),
                    .first_partial = first_partial_.data()};
    work_.prefill = {.items = static_cast<int64_t>(prefill_.size()), .item = prefill_item_.data()};
    order_.Settle();
    item_.Settle();
  }
  [[nodiscard]] const AttentionOnDevice* get() const { return &work_; }
  void RowsAreApart() {
    work_.rows_apart = true;
    work_.decode.several = work_.decode.partials > work_.decode.rows;
  }

 private:
  DecodePlan plan_;
  std::vector<AttentionItem> prefill_;
  DeviceArray<int32_t> row_, order_, first_partial_;
  DeviceArray<AttentionItem> item_, prefill_item_;
  AttentionOnDevice work_;
};
std::vector<int32_t> AllRows(const Batch& b) {
  std::vector<int32_t> rows(static_cast<size_t>(b.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

template <typename T>
Bytes RunAttention(const Problem<T>& p, const Batch& b, const OnDevice<T>& d, const Work& work,
                   const std::string& what, std::vector<T>* out_values, std::vector<float>* lse_values) {
  const DeviceArray<T> out(static_cast<int64_t>(p.q.size()));
  const DeviceArray<float> lse(b.rows() * p.heads);
  device::AttentionArgs<T> a = d.Args(p, out.data(), lse.data());
  a.work = work.get();
  RunKernel(what, [&](Launcher& l) { return Attention(a, l); });
  *out_values = out.Read();
  *lse_values = lse.Read();
  return BytesOf(*out_values, *lse_values);
}
template <typename T>
Bytes RunDecode(const Problem<T>& p, const Batch& b, const OnDevice<T>& d, const std::string& what,
                std::vector<T>* out_values, std::vector<float>* lse_values) {
  return RunAttention(p, b, d, Work(b, AllRows(b), {}, 1), what, out_values, lse_values);
}

template <typename T>
void CompareDecode(FuzzRng& rng, const Batch& b, const std::vector<int64_t>& sizes, uint64_t seed,
                   std::vector<size_t> alone) {
  TP_NEEDS_DEVICE();
  const Problem<T> p =
      RandomProblem<T>(rng, b, sizes, {1, 2, 3, sizes[0] == 64 ? 20 : 7});  // 20: two tiles of rows
  const std::string what = std::string(TypeName<T>()) + ", decode, seed " + std::to_string(seed) +
                           ", head size " + std::to_string(p.size);
  const OnDevice<T> d(p, b);
  std::vector<T> out, out_alone;
  std::vector<float> lse, lse_alone;
  SameInEveryOrder(seed, what, [&] { return RunDecode(p, b, d, what, &out, &lse); });
  ExpectNear(out, p.out, kOutOff<T>, Relative<T>(), what + " out");
  ExpectNear(lse, p.lse, kLseOff<T>, 2e-5F, what + " lse");

  // A row by itself, so with nobody to share a pass with, has the same bits.
  for (const size_t row : alone) {
    Batch one = b;
    one.first_run = {b.first_run[row]};
    one.lengths = {b.lengths[row]};
    Problem<T> q = p;
    const auto width = static_cast<std::ptrdiff_t>(p.heads * p.size),
               at = static_cast<std::ptrdiff_t>(row) * width;
    q.q.assign(p.q.begin() + at, p.q.begin() + at + width);
    const OnDevice<T> d_one(q, one);
    RunDecode(q, one, d_one, what, &out_alone, &lse_alone);
    EXPECT_TRUE(std::memcmp(out_alone.data(), out.data() + at, static_cast<size_t>(width) * sizeof(T)) == 0)
        << what << ": row " << row << " depends on its batch";
    EXPECT_TRUE(std::memcmp(lse_alone.data(), lse.data() + row * static_cast<size_t>(p.heads),
                            static_cast<size_t>(p.heads) * 4) == 0)
        << what;
  }
}
template <typename T>
void FuzzDecode(uint64_t seed, const std::vector<int64_t>& sizes, int64_t length_max) {
  FuzzRng rng(seed + 400);
  const Batch b = RandomBatch(rng, rng.Between(1, 4), length_max, rng.Below(2) == 0 ? 1 : 3);
  const auto row = static_cast<size_t>(rng.Below(b.rows()));
  CompareDecode<T>(rng, b, sizes, seed, {row});
}
TEST(AttentionKernelTest, DecodeAgreesWithTheCpuAndARowHasTheSameBitsInEveryBatch) {
  for (int64_t seed = 0; seed < FuzzSeeds(6); ++seed) {
    FuzzDecode<BF16>(static_cast<uint64_t>(seed), {64, 128}, seed % 3 == 0 ? 700 : 300);
    FuzzDecode<BF16>(static_cast<uint64_t>(seed), {16, 80, 96}, 300);
    FuzzDecode<float>(static_cast<uint64_t>(seed), {16, 64, 130}, seed % 3 == 0 ? 700 : 200);
  }
}

TEST(AttentionKernelTest, SamplesOfAPromptShareAPassAndKeepTheirBits) {
  // A prompt of 600 keys in two pieces, three samples that go on from it, and one from its middle.
  Batch b;
  b.slots = 1200;
  b.runs = {{500, 250}, {0, 350}, {400, 9}, {500, 250}, {0, 350}, {420, 30},
            {500, 250}, {0, 350}, {760, 1}, {500, 250}, {0, 20},  {800, 300}};
  b.first_run = {0, 3, 6, 9};
  b.lengths = {609, 630, 601, 570};
  const DecodePlan plan = DecodePlanner().Plan(AllRows(b), b.first_run, b.lengths, b.runs);
  EXPECT_EQ(plan.partials, 12);
  EXPECT_EQ(plan.items.size(), 7U);  // one of four rows, one of three, the fourth's second, four rests
  for (uint64_t seed = 0; seed < 2; ++seed) {
    FuzzRng rng(seed);
    CompareDecode<BF16>(rng, b, {64}, seed, {0, 1, 2, 3});
    CompareDecode<BF16>(rng, b, {128}, seed, {0, 3});
    CompareDecode<float>(rng, b, {32}, seed, {0, 3});
  }
}

// A pair and its angle whose rotation is another bfloat16 where one of its products is not rounded: a
// compiler may leave that out, and not alike in two kernels.
struct TouchyPair {
  explicit TouchyPair(FuzzRng& rng) {
    const auto rounded = [](float v) {
      BF16 to;
      RoundTo(v, &to);
      return to.bits;
    };
    do {
      RoundTo(2 * (2 * rng.Uniform() - 1), &first);
      RoundTo(2 * (2 * rng.Uniform() - 1), &second);
      cos = 2 * rng.Uniform() - 1, sin = 2 * rng.Uniform() - 1;
    } while (rounded(std::fma(AsFloat(second), cos, AsFloat(first) * sin)) ==
             rounded(std::fma(AsFloat(first), sin, AsFloat(second) * cos)));
  }
  BF16 first, second;
  float cos, sin;
};

// The rotation in the attention against one kernel each: the same bits, in the KV memory, too. touchy: of
// pairs that show whether both round alike.
void CompareRotaryAttention(uint64_t seed, int64_t length_max, bool touchy = false) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 2600);
  const Batch b = RandomBatch(rng, rng.Between(1, 5), length_max, 1);
  const Problem<BF16> p = RandomProblem<BF16>(rng, b, {64, 128}, {1, 2, 7, 20});
  const OnDevice<BF16> d(p, b);
  const int64_t rows = b.rows(), half = p.size / 2, width = (p.heads + 2 * p.kv_heads) * p.size;
  std::vector<int32_t> slots, positions;
  for (size_t r = 0; r < b.lengths.size(); ++r) {
    int32_t left = b.lengths[r] - 1;
    auto run = b.runs.begin() + b.first_run[r];
    for (; left >= run->count; ++run) left -= run->count;
    slots.push_back(run->start + left);
    positions.push_back(b.lengths[r] - 1);
  }
  const bool norm = rng.Below(2) == 0 && !touchy, bias = rng.Below(2) == 0 && !touchy;
  const std::string what = "seed " + std::to_string(seed) + ", head size " + std::to_string(p.size);
  std::vector<BF16> heads = RandomValues<BF16>(rng, rows * width, 2.0F);
  std::vector<float> cosines = RandomValues<float>(rng, length_max * half),
                     sines = RandomValues<float>(rng, length_max * half);
  if (touchy) {
    std::vector<TouchyPair> pairs;
    while (pairs.size() < 16) pairs.emplace_back(rng);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = positions[static_cast<size_t>(r)];
      for (int64_t c = 0; c < half; ++c) {
        const TouchyPair& pair = pairs[static_cast<size_t>((position + c) % 16)];
        cosines[static_cast<size_t>(position * half + c)] = pair.cos;
        sines[static_cast<size_t>(position * half + c)] = pair.sin;
        for (int64_t h = 0; h < width; h += p.size) {
          heads[static_cast<size_t>(r * width + h + c)] = pair.first;
          heads[static_cast<size_t>(r * width + h + half + c)] = pair.second;
        }
      }
    }
  }
  const DeviceArray<BF16> qkv(heads), biases(RandomValues<BF16>(rng, width)),
      q_norm(RandomValues<BF16>(rng, p.size)), k_norm(RandomValues<BF16>(rng, p.size));
  const DeviceArray<float> cos(cosines), sin(sines);
  const DeviceArray<int32_t> d_slots(slots), d_positions(positions);
  cos.Settle();
  sin.Settle();
  d_positions.Settle();
  Work work(b, AllRows(b), {}, 1);
  int rotated = 0;
  const auto run = [&](bool together) {
    const DeviceArray<BF16> q(static_cast<int64_t>(p.q.size())), k(p.k), v(p.v),
        out(static_cast<int64_t>(p.q.size()));
    k.Settle();  // of earlier steps
    v.Settle();
    const DeviceArray<float> lse(rows * p.heads);
    const device::RotaryArgs<BF16> turn{.rows = rows,
                                        .heads = p.heads,
                                        .kv_heads = p.kv_heads,
                                        .head_size = p.size,
                                        .table_rows = length_max,
                                        .slot_count = b.slots,
                                        .qkv = qkv.data(),
                                        .bias = bias ? biases.data() : nullptr,
                                        .q_norm = norm ? q_norm.data() : nullptr,
                                        .k_norm = norm ? k_norm.data() : nullptr,
                                        .eps = 1e-5F,
                                        .cos = cos.data(),
                                        .sin = sin.data(),
                                        .positions = d_positions.data(),
                                        .slots = d_slots.data(),
                                        .q = q.data(),
                                        .k = k.data(),
                                        .v = v.data()};
    device::AttentionArgs<BF16> a = d.Args(p, out.data(), lse.data());
    a.q = q.data(), a.k = k.data(), a.v = v.data(), a.work = work.get();
    if (together && RotatesInAttention(turn, a)) {
      ++rotated;
      RunKernel(what, [&](Launcher& l) { return RotaryAttention(turn, a, l); });
    } else {
      RunKernel(what, [&](Launcher& l) { return Rotary(turn, l); });
      RunKernel(what, [&](Launcher& l) { return Attention(a, l); });
    }
    return BytesOf(out.Read(), lse.Read(), k.Read(), v.Read());
  };
  const Bytes want = run(false);
  work.RowsAreApart();
  SameInEveryOrder(seed, what, [&] {
    const Bytes got = run(true);
    EXPECT_TRUE(got == want) << what;
    return got;
  });
  EXPECT_TRUE(rotated >= (p.size == 64 ? kOrders : kOrders - 1)) << what << ": " << rotated;
}
TEST(AttentionKernelTest, RotatesAndAttendsInOneKernelWithTheBitsOfTwo) {
  for (int64_t seed = 0; seed < FuzzSeeds(8); ++seed) CompareRotaryAttention(static_cast<uint64_t>(seed), 60);
  for (int64_t seed = 0; seed < FuzzSeeds(3); ++seed)
    CompareRotaryAttention(static_cast<uint64_t>(seed) + 100, 600);
  for (int64_t seed = 0; seed < FuzzSeeds(4); ++seed)
    CompareRotaryAttention(static_cast<uint64_t>(seed) + 200, 60, /*touchy=*/true);
}

template <typename T>
void ComparePrefill(uint64_t seed, const std::vector<int64_t>& sizes, int64_t length_max) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 500);
  const Batch b = RandomBatch(rng, rng.Between(1, 3), length_max, rng.OneOf({1, 5, 70, 200}));
  const Problem<T> p = RandomProblem<T>(rng, b, sizes);
  const std::string what = std::string(TypeName<T>()) + ", prefill, seed " + std::to_string(seed) +
                           ", head size " + std::to_string(p.size);
  const OnDevice<T> d(p, b);
  const Work work(b, {}, AllRows(b), PrefillRows(p.heads, p.kv_heads));
  std::vector<T> out;
  std::vector<float> lse;
  SameInEveryOrder(seed, what, [&] { return RunAttention(p, b, d, work, what, &out, &lse); });
  ExpectNear(out, p.out, kOutOff<T>, Relative<T>(), what + " out");
  ExpectNear(lse, p.lse, kLseOff<T>, 2e-5F, what + " lse");

  // A row by itself has the same bits; and where no tiles are used, those of decode.
  const auto row = static_cast<size_t>(rng.Below(b.rows()));
  const auto width = static_cast<std::ptrdiff_t>(p.heads * p.size),
             at = static_cast<std::ptrdiff_t>(row) * width;
  Batch one = b;
  one.first_run = {b.first_run[row]};
  one.lengths = {b.lengths[row]};
  Problem<T> q = p;
  q.q.assign(p.q.begin() + at, p.q.begin() + at + width);
  const OnDevice<T> d_one(q, one);
  std::vector<T> alone;
  std::vector<float> lse_alone;
  RunAttention(q, one, d_one, Work(one, {}, AllRows(one), 1), what, &alone, &lse_alone);
  EXPECT_TRUE(std::memcmp(alone.data(), out.data() + at, static_cast<size_t>(width) * sizeof(T)) == 0)
      << what << ": row " << row << " depends on its batch";
  if (std::is_same_v<T, BF16> && (p.size == 64 || p.size == 128)) return;
  std::vector<T> decoded;
  std::vector<float> decoded_lse;
  RunDecode(q, one, d_one, what, &decoded, &decoded_lse);
  EXPECT_TRUE(std::memcmp(decoded.data(), out.data() + at, static_cast<size_t>(width) * sizeof(T)) == 0)
      << what;
}
TEST(AttentionKernelTest, PrefillAgreesWithTheCpuAndARowHasTheSameBitsInEveryBatch) {
  for (int64_t seed = 0; seed < FuzzSeeds(5); ++seed) {
    ComparePrefill<BF16>(static_cast<uint64_t>(seed), {64, 128}, seed % 3 == 0 ? 400 : 150);
    ComparePrefill<BF16>(static_cast<uint64_t>(seed), {16, 80}, 60);
    ComparePrefill<float>(static_cast<uint64_t>(seed), {16, 64}, seed == 0 ? 300 : 60);
  }
}

// Rows whose slots are themselves, after `before` others: prompts with samples that go on from somewhere in
// them.
Batch TrainingBatch(FuzzRng& rng, int64_t before, int64_t rows) {
  Batch b;
  std::vector<device::KvRun> prefix;  // what the next sequence begins with
  int64_t shared = 0;
  while (b.rows() < before + rows) {
    const int64_t begin = b.rows(), left = before + rows - begin;
    const int64_t count = begin < before ? before - begin : rng.Between(1, left);
    if (begin <= before || rng.Below(3) == 0) {
      prefix.clear();
      shared = 0;
    }
    const auto first = static_cast<int32_t>(b.runs.size());
    b.runs.insert(b.runs.end(), prefix.begin(), prefix.end());
    b.runs.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(count)});
    for (int64_t i = 0; i < count; ++i) {
      b.first_run.push_back(first);
      b.lengths.push_back(static_cast<int32_t>(shared + i + 1));
    }
    const int64_t taken = rng.Between(1, count);
    prefix.assign(b.runs.begin() + first, b.runs.end());
    prefix.back().count = static_cast<int32_t>(taken);
    shared += taken;
  }
  b.slots = b.rows();
  return b;
}

// The arguments of the backward that a forward's already say.
template <typename T>
device::AttentionBackwardArgs<T> BackwardOf(const device::AttentionArgs<T>& f) {
  return {.heads = f.heads,
          .kv_heads = f.kv_heads,
          .head_size = f.head_size,
          .keys = f.keys,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .out = f.out,
          .lse = f.lse};
}

// Of all rows, where the first `before` and the others attend among themselves.
template <typename T>
void CpuBackward(const Batch& b, const Problem<T>& p, int64_t before, device::AttentionCellArgs<T> a) {
  const std::vector<std::pair<int64_t, int64_t>> ranges =
      before > 0 ? std::vector<std::pair<int64_t, int64_t>>{{0, before}, {before, b.rows()}}
                 : std::vector<std::pair<int64_t, int64_t>>{{0, b.rows()}};
  const device::AttentionBackwardPlan plan =
      device::PlanAttentionBackward(b.first_run, b.lengths, b.runs, ranges, {p.heads, p.kv_heads, p.size});
  const int64_t padded = device::RoundUp(p.size, 16);
  std::vector<float> dq(static_cast<size_t>(plan.lanes * p.kv_heads * padded)),
      dk(static_cast<size_t>(b.rows() * p.kv_heads * padded)), dv(dk.size()),
      scratch(static_cast<size_t>(device::AttentionBackwardScratch(p.size)));
  a.tiles = plan.tiles.data();
  a.dq = dq.data(), a.dk = dk.data(), a.dv = dv.data();
  for (int64_t kv = 0; kv < p.kv_heads; ++kv) {
    for (const device::AttentionCell& cell : plan.cells)
      device::KernelsFor<T>(device::BestIsa()).attention_backward(cell, kv, a, scratch.data());
  }
}

// The work of a backward of these ranges.
class BackwardWorkOf {
 public:
  BackwardWorkOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, const Batch& b)
      : BackwardWorkOf(ranges, PlanBackward(ranges, b.first_run, b.lengths, b.runs)) {}
  [[nodiscard]] const AttentionOnDevice* get() const { return &work_; }

 private:
  BackwardWorkOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, const BackwardPlan& plan)
      : query_blocks_(plan.queries.blocks),
        key_blocks_(plan.keys.blocks),
        query_steps_(plan.queries.steps),
        key_steps_(plan.keys.steps),
        masks_(plan.masks) {
    work_.ranges = ranges;
    work_.backward = {.queries = {.blocks = static_cast<int64_t>(plan.queries.blocks.size()),
                                  .block = query_blocks_.data(),
                                  .step = query_steps_.data()},
                      .keys = {.blocks = static_cast<int64_t>(plan.keys.blocks.size()),
                               .block = key_blocks_.data(),
                               .step = key_steps_.data()},
                      .tiles = static_cast<int64_t>(plan.tiles.size()),
                      .mask = masks_.data()};
  }
  DeviceArray<BackwardBlock> query_blocks_, key_blocks_;
  DeviceArray<BackwardStep> query_steps_, key_steps_;
  DeviceArray<uint64_t> masks_;
  AttentionOnDevice work_;
};

template <typename T>
void CompareBackward(uint64_t seed, const std::vector<int64_t>& sizes, int64_t rows_max,
                     int64_t rows_min = 1) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 600);
  const int64_t before = rng.OneOf({0, 0, 7, 40}), rows = rng.Between(rows_min, rows_max);
  const Batch b = TrainingBatch(rng, before, rows);
  Problem<T> p = RandomProblem<T>(rng, b, sizes);
  const std::string what = std::string(TypeName<T>()) + ", backward, seed " + std::to_string(seed) +
                           ", head size " + std::to_string(p.size) + ", rows " + std::to_string(rows);
  const int64_t width = (p.heads + 2 * p.kv_heads) * p.size, half = p.size / 2;
  const std::vector<T> dout = RandomValues<T>(rng, b.rows() * p.heads * p.size);
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < 50 * half; ++i) {
    const float angle = 6.3F * rng.Uniform();
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  std::vector<int32_t> positions;
  for (int64_t r = 0; r < b.rows(); ++r) positions.push_back(static_cast<int32_t>(rng.Below(50)));
  const std::vector<T> dqkv0 =
      RandomValues<T>(rng, b.rows() * width);  // rows outside the range stay as they are
  std::vector<T> dqkv = dqkv0;
  device::AttentionCellArgs<T> back{BackwardOf(p.Cpu(b))};
  back.dout = dout.data(), back.cos = cos.data(), back.sin = sin.data(), back.positions = positions.data();
  back.dqkv = dqkv.data();
  CpuBackward(b, p, before, back);
  std::copy_n(dqkv0.begin(), before * width, dqkv.begin());

  const OnDevice<T> d(p, b);
  const DeviceArray<T> d_out(p.out), d_dout(dout);
  const DeviceArray<float> d_lse(p.lse), d_cos(cos), d_sin(sin);
  const DeviceArray<int32_t> d_positions(positions);
  std::vector<T> got;
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<T> d_dqkv(dqkv0);
    device::AttentionBackwardArgs<T> a = BackwardOf(d.Args(p, d_out.data(), d_lse.data()));
    a.dout = d_dout.data(), a.cos = d_cos.data(), a.sin = d_sin.data(), a.positions = d_positions.data();
    a.dqkv = d_dqkv.data();
    const BackwardWorkOf work({{before, before + rows}}, b);
    a.work = work.get();
    RunKernel(what, [&](Launcher& l) { return AttentionBackward(a, l); });
    got = d_dqkv.Read();
    return BytesOf(got);
  });
  float largest = 0;
  for (const T& v : dqkv) largest = std::max(largest, std::abs(AsFloat(v)));
  // In bfloat16 p and ds are rounded before their products: 2^-9 of each term of a sum.
  ExpectNear(got, dqkv, (std::is_same_v<T, float> ? 1e-5F : 1.0F / 256) * largest, Relative<T>(), what);
}
TEST(AttentionKernelTest, BackwardAgreesWithTheCpu) {
  for (int64_t seed = 0; seed < FuzzSeeds(5); ++seed) {
    CompareBackward<BF16>(static_cast<uint64_t>(seed), {64, 128}, seed % 3 == 0 ? 180 : 60);
    CompareBackward<BF16>(static_cast<uint64_t>(seed), {16, 80}, 40);
    CompareBackward<float>(static_cast<uint64_t>(seed), {16, 64}, 40);
  }
  CompareBackward<float>(1, {16, 64}, 200, 180);  // more keys than a block takes at a time
}

TEST(AttentionKernelTest, PlansShareWhatLiesInTheSameSlots) {
  // Two samples of a prompt of 300 keys, cut into pages differently, and a stranger.
  const std::vector<device::KvRun> runs = {{1000, 300}, {0, 10},  {1000, 100},
                                           {1100, 200}, {50, 20}, {2000, 320}};
  const std::vector<int32_t> first_run = {0, 2, 5}, lengths = {310, 320, 320}, all = {0, 1, 2};
  const DecodePlan plan = DecodePlanner().Plan(all, first_run, lengths, runs);
  EXPECT_EQ(plan.partials, 6);
  EXPECT_TRUE((plan.first_partial == std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(plan.items.size(), 5U);
  EXPECT_EQ(plan.items[0].count, 2);  // keys 0 to 255 of both samples
  EXPECT_EQ(plan.order[0], 0);
  EXPECT_EQ(plan.order[1], 1);
  EXPECT_EQ(plan.items[1].run, 0);  // keys 256 on begin inside the run of 300
  EXPECT_EQ(plan.items[1].run_position, 0);
  EXPECT_EQ(plan.items[2].run, 3);
  EXPECT_EQ(plan.items[2].run_position, 100);
  for (size_t i = 1; i < plan.items.size(); ++i) EXPECT_EQ(plan.items[i].count, 1);

  const std::vector<int32_t> sequence = {0, 0, 0, 2, 2, 5}, upto = {8, 9, 10, 1, 2, 300};
  const std::vector<int32_t> six = {0, 1, 2, 3, 4, 5};
  const std::vector<AttentionItem> items = PlanPrefill(six, sequence, upto, 2);
  EXPECT_EQ(items.size(), 4U);
  EXPECT_EQ(items[0].first, 5);  // the longest first
  EXPECT_EQ(items[1].first, 2);
  EXPECT_EQ(items[2].count, 2);
}

// Which queries attend to which keys, said from both sides, once for each pair.
TEST(AttentionKernelTest, TheBackwardsBlocksHoldEveryPairOnce) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FuzzRng rng(seed + 1000);
    const int64_t before = rng.OneOf({0, 70}), rows = rng.Between(1, 500);
    const Batch b = TrainingBatch(rng, before, rows);
    std::vector<std::pair<int64_t, int64_t>> ranges = {{before, b.rows()}};
    if (before > 0) ranges.insert(ranges.begin(), {0, before});
    const auto n = static_cast<size_t>(b.rows());
    std::vector<int> want(n * n);
    for (size_t row = 0; row < n; ++row) {
      int32_t left = b.lengths[row];
      for (auto run = static_cast<size_t>(b.first_run[row]); left > 0; left -= b.runs[run++].count) {
        const int32_t count = std::min(left, b.runs[run].count);
        for (int32_t i = 0; i < count; ++i) want[row * n + static_cast<size_t>(b.runs[run].start + i)] = 1;
      }
    }
    const BackwardPlan plan = PlanBackward(ranges, b.first_run, b.lengths, b.runs);
    for (const bool of_keys : {false, true}) {
      const BackwardPass& pass = of_keys ? plan.keys : plan.queries;
      std::vector<int> got(n * n);
      int32_t steps_before = pass.blocks.front().steps;
      for (const BackwardBlock& block : pass.blocks) {
        EXPECT_TRUE(block.steps <= steps_before);
        steps_before = block.steps;
        EXPECT_EQ(plan.tiles[static_cast<size_t>(block.tile)].first, block.first);
        for (int32_t s = block.step; s < block.step + block.steps; ++s) {
          const BackwardStep& step = pass.steps[static_cast<size_t>(s)];
          EXPECT_EQ(plan.tiles[static_cast<size_t>(step.tile)].first, step.first);
          EXPECT_TRUE(step.mask >= 0 || (block.count == kBackBlock && step.count == kBackStep));
          for (int32_t i = 0; i < kBackBlock; ++i) {
            const uint64_t bits =
                step.mask < 0 ? ~uint64_t{0} : plan.masks[static_cast<size_t>(step.mask * kBackBlock + i)];
            for (int32_t j = 0; j < kBackStep; ++j) {
              if ((bits >> j & 1U) == 0) continue;
              const auto mine = static_cast<size_t>(block.first + i),
                         other = static_cast<size_t>(step.first + j);
              const bool there = i < block.count && j < step.count;
              EXPECT_TRUE(there) << "seed " << seed;
              if (!there) continue;
              ++got[of_keys ? other * n + mine : mine * n + other];
            }
          }
        }
      }
      EXPECT_TRUE(got == want) << "seed " << seed << (of_keys ? ", keys" : ", queries");
    }
  }
  // Sequences have the same masks on their diagonals: two a side.
  std::vector<int32_t> first_run, lengths;
  std::vector<device::KvRun> runs;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int32_t s = 0; s < 3; ++s) {
    ranges.emplace_back(s * 256, s * 256 + 256);
    runs.push_back({s * 256, 256});
    for (int32_t i = 0; i < 256; ++i) {
      first_run.push_back(s);
      lengths.push_back(i + 1);
    }
  }
  const BackwardPlan plan = PlanBackward(ranges, first_run, lengths, runs);
  EXPECT_EQ(plan.masks.size(), 4U * kBackBlock);
  EXPECT_EQ(plan.queries.blocks.size(), 6U);
  EXPECT_EQ(plan.queries.steps.size(), 18U);
}

// A batch of which some sequences are decoded and the others have a pass of their own, as CudaDevice divides
// it: each row has the bits that it has where all rows go one way.
template <typename T>
void CompareMixed(uint64_t seed) {
  FuzzRng rng(seed + 900);
  Batch b = RandomBatch(rng, 4, 80, 40);
  const Problem<T> p = RandomProblem<T>(rng, b, {64, 80});
  const RowsByPass rows = DivideRows(b.first_run);
  const std::string what = std::string(TypeName<T>()) + ", mixed, seed " + std::to_string(seed);
  const OnDevice<T> d(p, b);
  const int64_t rows_max = PrefillRows(p.heads, p.kv_heads);
  std::vector<T> mixed, decoded, prefilled;
  std::vector<float> mixed_lse, decoded_lse, prefilled_lse;
  RunAttention(p, b, d, Work(b, rows.decode, rows.prefill, rows_max), what, &mixed, &mixed_lse);
  RunAttention(p, b, d, Work(b, AllRows(b), {}, 1), what, &decoded, &decoded_lse);
  RunAttention(p, b, d, Work(b, {}, AllRows(b), rows_max), what, &prefilled, &prefilled_lse);
  const auto width = static_cast<size_t>(p.heads * p.size);
  const auto same = [&](const std::vector<int32_t>& of, const std::vector<T>& want) {
    for (const int32_t row : of) {
      const size_t at = static_cast<size_t>(row) * width;
      EXPECT_TRUE(std::memcmp(mixed.data() + at, want.data() + at, width * sizeof(T)) == 0)
          << what << ", row " << row;
    }
  };
  same(rows.decode, decoded);
  same(rows.prefill, prefilled);
}
TEST(AttentionKernelTest, ABatchMayBeDecodedInPartAndPrefilledInPart) {
  TP_NEEDS_DEVICE();
  for (int64_t seed = 0; seed < FuzzSeeds(2); ++seed) {
    CompareMixed<float>(static_cast<uint64_t>(seed));
    CompareMixed<BF16>(static_cast<uint64_t>(seed));
  }
}

TEST(AttentionKernelTest, SequencesOfManyRowsHaveAPassOfTheirOwn) {
  std::vector<int32_t> first_run(3, 0);
  first_run.insert(first_run.end(), kPrefillFrom, 1);
  first_run.push_back(7);
  const RowsByPass rows = DivideRows(first_run);
  EXPECT_TRUE((rows.decode == std::vector<int32_t>{0, 1, 2, static_cast<int32_t>(3 + kPrefillFrom)}));
  EXPECT_EQ(rows.prefill.size(), static_cast<size_t>(kPrefillFrom));
  EXPECT_EQ(rows.prefill.front(), 3);
  const RowsByPass one_pass = DivideRows(first_run, /*all_decoded=*/true);
  EXPECT_EQ(one_pass.decode.size(), first_run.size());
  EXPECT_TRUE(one_pass.prefill.empty());
}

}  // namespace
}  // namespace tidepool::cuda
