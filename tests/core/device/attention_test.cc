// Tiles of attention against plain loops in float64, and against each row alone: the same bits in every tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/attention_plan.h"
#include "core/device/cpu/kernels.h"

namespace tidepool::device {
#if defined(__x86_64__)
extern const TileKernels kEmulatedTiles;  // emulated_tiles.cc
#endif
namespace {

float Wide(float x) { return x; }
float Wide(BF16 x) {
  const uint32_t u = uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
template <typename T>
std::vector<T> Random(Rng& rng, int64_t n, double scale = 1.0) {
  std::vector<float> wide;
  for (int64_t i = 0; i < n; ++i) wide.push_back(static_cast<float>(scale * rng.Normal()));
  if constexpr (std::is_same_v<T, float>) {
    return wide;
  } else {
    std::vector<BF16> narrow(wide.size());
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, n, wide.data(), narrow.data());
    return narrow;
  }
}
template <typename T>
struct Way {
  const char* name;
  KernelTable<T> kernels;
};
// All that this processor can run.
template <typename T>
std::vector<Way<T>> Ways() {
  std::vector<Way<T>> ways;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (isa <= BestIsa()) ways.push_back({Name(isa), KernelsFor<T>(isa)});
  }
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, BF16>) {
    if (BestIsa() >= Isa::kAvx512Bf16)
      ways.push_back({"emulated tiles", kEmulatedTiles.In(KernelsFor<BF16>(Isa::kAvx512Bf16))});
  }
#endif
  return ways;
}

struct Shape {
  int64_t heads, kv_heads, size;
};
Shape RandomShape(Rng& rng) {
  const int64_t sizes[] = {8, 16, 24, 32, 64, 80, 96, 128};
  const auto group = static_cast<int64_t>(1 + rng.Below(8));
  const auto kv_heads = static_cast<int64_t>(1 + rng.Below(3));
  return {group * kv_heads, kv_heads, sizes[rng.Below(8)]};
}

// Rows of sequences over slots that are cut into runs at any place.
struct Rows {
  std::vector<int32_t> first_run, lengths;
  std::vector<KvRun> runs;
  int64_t slots = 0;

  // Rows for the keys [from, end of slots).
  void Add(const std::vector<int32_t>& slots_of, int64_t from, Rng& rng) {
    const auto first = static_cast<int32_t>(runs.size());
    for (size_t i = 0; i < slots_of.size(); ++i) {
      if (i > 0 && slots_of[i] == runs.back().start + runs.back().count && rng.Below(40) > 0) {
        ++runs.back().count;
      } else {
        runs.push_back({slots_of[i], 1});
      }
      if (rng.Below(100) == 0) runs.push_back({3, 0});
    }
    for (auto i = static_cast<size_t>(from); i < slots_of.size(); ++i) {
      first_run.push_back(first);
      lengths.push_back(static_cast<int32_t>(i) + 1);
    }
  }
  [[nodiscard]] std::vector<int32_t> SlotsOf(size_t row) const {
    std::vector<int32_t> all;
    for (auto i = static_cast<size_t>(first_run[row]); static_cast<int32_t>(all.size()) < lengths[row]; ++i) {
      for (int32_t k = 0; k < runs[i].count; ++k) all.push_back(runs[i].start + k);
    }
    all.resize(static_cast<size_t>(lengths[row]));
    return all;
  }
};

// As an engine has them: groups with a common beginning, some of their rows decode, some are prefilled; pages
// stand anywhere.
Rows RandomPages(Rng& rng, int64_t longest) {
  Rows rows;
  std::vector<std::pair<std::vector<int32_t>, int64_t>> sequences;  // positions in a row of slots, first row
  for (uint64_t groups = 1 + rng.Below(3); groups > 0; --groups) {
    const auto shared = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(longest)));
    const auto start = static_cast<int32_t>(rows.slots);
    rows.slots += shared;
    for (uint64_t members = 1 + rng.Below(6); members > 0; --members) {
      // A member may leave the group earlier.
      const int64_t kept =
          rng.Below(3) > 0 ? shared : static_cast<int64_t>(rng.Below(static_cast<uint64_t>(shared + 1)));
      const auto own = static_cast<int64_t>(1 + rng.Below(rng.Below(4) == 0 ? 300 : 40));
      std::vector<int32_t> slots;
      for (int64_t i = 0; i < kept; ++i) slots.push_back(start + static_cast<int32_t>(i));
      for (int64_t i = 0; i < own; ++i) slots.push_back(static_cast<int32_t>(rows.slots++));
      const int64_t n = kept + own;
      const int64_t from =
          rng.Below(3) > 0 ? n - 1 : std::max<int64_t>(0, n - 1 - static_cast<int64_t>(rng.Below(150)));
      sequences.emplace_back(std::move(slots), from);
    }
  }
  std::vector<int32_t> page;  // [slots / 16] where it stands
  for (int64_t i = 0; i * 16 < rows.slots; ++i) page.push_back(static_cast<int32_t>(i));
  rows.slots = static_cast<int64_t>(page.size()) * 16;
  if (rng.Below(2) == 0) {
    for (size_t i = page.size() - 1; i > 0; --i) std::swap(page[i], page[rng.Below(i + 1)]);
  }
  for (auto& [slots, from] : sequences) {
    for (int32_t& s : slots) s = page[static_cast<size_t>(s) / 16] * 16 + s % 16;
    rows.Add(slots, from, rng);
  }
  return rows;
}

template <typename T>
struct Memory {
  std::vector<T> q, k, v, out;
  std::vector<float> lse, parts;
  AttentionArgs<T> args;
  Memory(const Rows& rows, const Shape& s, Rng& rng)
      : q(Random<T>(rng, static_cast<int64_t>(rows.lengths.size()) * s.heads * s.size,
                    rng.Below(4) == 0 ? 4 : 1)),
        k(Random<T>(rng, rows.slots * s.kv_heads * s.size)),
        v(Random<T>(rng, rows.slots * s.kv_heads * s.size)),
        out(q.size()),
        lse(rows.lengths.size() * static_cast<size_t>(s.heads)) {
    args = {.heads = s.heads,
            .kv_heads = s.kv_heads,
            .head_size = s.size,
            .keys = {.rows = static_cast<int64_t>(rows.lengths.size()),
                     .run_count = static_cast<int64_t>(rows.runs.size()),
                     .slot_count = rows.slots,
                     .first_run = rows.first_run.data(),
                     .lengths = rows.lengths.data(),
                     .runs = rows.runs.data()},
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .out = out.data(),
            .lse = lse.data()};
  }
  // What was in memory before must not matter.
  static std::vector<float> Garbage(int64_t n) {
    return std::vector<float>(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
  }
  void Run(const KernelTable<T>& kernels, const AttentionPlan& plan) {
    parts = Garbage(plan.parts * args.heads * AttentionPartFloats(args.head_size));
    std::vector<float> scratch = Garbage(AttentionScratch(args.head_size));
    AttentionTileArgs<T> a{args};
    a.tile_rows = plan.tile_rows.data();
    a.first_part = plan.first_part.data(), a.part_count = plan.part_count.data(), a.parts = parts.data();
    for (const auto* tiles : {&plan.parts_tiles, &plan.tiles}) {
      for (const AttentionTile& tile : *tiles) kernels.attention(tile, a, scratch.data());
    }
  }
  void RunAlone(const KernelTable<T>& kernels, int32_t row) {
    std::vector<float> scratch = Garbage(AttentionScratch(args.head_size));
    AttentionTileArgs<T> a{args};
    a.tile_rows = &row;
    const auto group = static_cast<int32_t>(args.heads / args.kv_heads);
    for (int32_t h = 0; h < args.heads; h += group) {
      kernels.attention(
          {.rows = 1,
           .head_begin = h,
           .head_end = h + group,
           .block_end = static_cast<int32_t>((args.keys.lengths[row] + kKeyBlock - 1) / kKeyBlock)},
          a, scratch.data());
    }
  }
};

// The arguments of the backward that a forward's already say.
template <typename T>
AttentionBackwardArgs<T> BackwardOf(const AttentionArgs<T>& f) {
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

struct Weights64 {
  std::vector<double> p;
  double lse = 0;
};
// Weights of one row and query head over `slots`.
template <typename T>
Weights64 PlainWeights(const Memory<T>& m, size_t row, int64_t head, const std::vector<int32_t>& slots) {
  const AttentionArgs<T>& a = m.args;
  const int64_t kv = head / (a.heads / a.kv_heads);
  Weights64 w;
  double top = -1e300, total = 0;
  for (const int32_t slot : slots) {
    double dot = 0;
    for (int64_t c = 0; c < a.head_size; ++c) {
      dot += double{Wide(a.q[(static_cast<int64_t>(row) * a.heads + head) * a.head_size + c])} *
             Wide(a.k[(slot * a.kv_heads + kv) * a.head_size + c]);
    }
    w.p.push_back(dot / std::sqrt(static_cast<double>(a.head_size)));
    top = std::max(top, w.p.back());
  }
  for (double& p : w.p) total += p = std::exp(p - top);
  for (double& p : w.p) p /= total;
  w.lse = top + std::log(total);
  return w;
}

template <typename T>
class AttentionTest : public testing::Test {};
using Types = testing::Types<float, BF16>;
TYPED_TEST_SUITE(AttentionTest, Types);

TYPED_TEST(AttentionTest, ARowHasTheSameBitsInEveryTileAndAgreesWithPlainLoops) {
  using T = TypeParam;
  constexpr double kRounding =
      std::is_same_v<T, float> ? 1e-5 : 8e-3;  // float32 sums; rounded weights and result
  for (const auto& [name, kernels] : Ways<T>()) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(testing::Message() << name << " seed " << seed);
      Rng rng(seed);
      const Shape s = RandomShape(rng);
      const Rows rows = RandomPages(rng, seed % 3 == 0 ? 90 : 500);
      Memory<T> m(rows, s, rng);
      const AttentionPlan plan =
          PlanAttention(rows.first_run, rows.lengths, rows.runs,
                        {s.heads, s.kv_heads, s.size, static_cast<int64_t>(1 + rng.Below(64))});
      m.Run(kernels, plan);
      const std::vector<T> out = m.out;
      const std::vector<float> lse = m.lse;
      for (size_t r = 0; r < rows.lengths.size(); ++r) m.RunAlone(kernels, static_cast<int32_t>(r));
      ASSERT_EQ(std::memcmp(out.data(), m.out.data(), out.size() * sizeof(T)), 0);
      ASSERT_EQ(std::memcmp(lse.data(), m.lse.data(), lse.size() * sizeof(float)), 0);
      for (int i = 0; i < 8; ++i) {
        const auto row = static_cast<size_t>(rng.Below(rows.lengths.size()));
        const auto head = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(s.heads)));
        const std::vector<int32_t> slots = rows.SlotsOf(row);
        const Weights64 w = PlainWeights(m, row, head, slots);
        const int64_t at = static_cast<int64_t>(row) * s.heads + head, kv = head / (s.heads / s.kv_heads);
        ASSERT_NEAR(lse[static_cast<size_t>(at)], w.lse, 1e-5);
        for (int64_t c = 0; c < s.size; ++c) {
          double want = 0;
          for (size_t j = 0; j < slots.size(); ++j)
            want += w.p[j] * Wide(m.v[static_cast<size_t>((slots[j] * s.kv_heads + kv) * s.size + c)]);
          ASSERT_NEAR(Wide(out[static_cast<size_t>(at * s.size + c)]), want,
                      kRounding * (1 + std::fabs(want)));
        }
      }
    }
  }
}

// Of a model that has come apart: the greatest key takes all, and nothing overflows on the way.
TYPED_TEST(AttentionTest, TheGreatestOfHugeScoresTakesAll) {
  using T = TypeParam;
  for (const auto& [name, kernels] : Ways<T>()) {
    Rng rng(5);
    const Shape s{4, 2, 64};
    const Rows rows = RandomPages(rng, 300);
    Memory<T> m(rows, s, rng);
    m.q = Random<T>(rng, static_cast<int64_t>(m.q.size()), 3e4);
    m.k = Random<T>(rng, static_cast<int64_t>(m.k.size()), 3e4);
    m.args.q = m.q.data(), m.args.k = m.k.data();
    m.Run(kernels, PlanAttention(rows.first_run, rows.lengths, rows.runs, {s.heads, s.kv_heads, s.size, 4}));
    for (size_t row = 0; row < rows.lengths.size(); ++row) {
      const std::vector<int32_t> slots = rows.SlotsOf(row);
      for (int64_t head = 0; head < s.heads; ++head) {
        const Weights64 w = PlainWeights(m, row, head, slots);
        const auto most = std::ranges::max_element(w.p) - w.p.begin();
        const int64_t at = static_cast<int64_t>(row) * s.heads + head, kv = head / (s.heads / s.kv_heads);
        for (int64_t c = 0; c < s.size; ++c) {
          const auto of_slot =
              static_cast<size_t>((slots[static_cast<size_t>(most)] * s.kv_heads + kv) * s.size + c);
          ASSERT_EQ(Wide(m.out[static_cast<size_t>(at * s.size + c)]), Wide(m.v[of_slot]))
              << name << " row " << row << " head " << head;
        }
      }
    }
  }
}

// Prefill in pieces, decoding, and a whole training batch.
TYPED_TEST(AttentionTest, PrefillDecodeAndTrainingRowsHaveTheSameBits) {
  using T = TypeParam;
  for (const auto& [name, kernels] : Ways<T>()) {
    Rng rng(77);
    const Shape s{9, 3, 64};
    Rows whole;
    std::vector<int32_t> slots(700);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    whole.slots = 700;
    whole.Add(slots, 0, rng);
    Memory<T> m(whole, s, rng);
    for (const auto& [begin, end] :
         {std::pair<size_t, size_t>{0, 700}, {0, 37}, {37, 300}, {300, 301}, {301, 700}}) {
      const std::vector<int32_t> first(whole.first_run.begin() + static_cast<int64_t>(begin),
                                       whole.first_run.begin() + static_cast<int64_t>(end)),
          lengths(whole.lengths.begin() + static_cast<int64_t>(begin),
                  whole.lengths.begin() + static_cast<int64_t>(end));
      Memory<T> part = m;
      part.args.q = m.q.data() + begin * 9 * 64, part.args.k = m.k.data(), part.args.v = m.v.data();
      part.args.keys.first_run = first.data(), part.args.keys.lengths = lengths.data();
      part.args.out = part.out.data(), part.args.lse = part.lse.data();
      part.Run(kernels, PlanAttention(first, lengths, whole.runs, {9, 3, 64, 2}));
      if (begin == 0 && end == 700) m.out = part.out;
      ASSERT_EQ(
          std::memcmp(part.out.data(), m.out.data() + begin * 9 * 64, (end - begin) * 9 * 64 * sizeof(T)), 0)
          << name << " rows " << begin << " to " << end;
    }
  }
}

TEST(AttentionPlanTest, AGroupGoesThroughItsPromptOnce) {
  Rng rng(1);
  Rows rows;
  std::vector<int32_t> prompt(1000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  for (int32_t member = 0; member < 8; ++member) {
    std::vector<int32_t> slots = prompt;
    for (int32_t i = 0; i < 5; ++i) slots.push_back(1000 + member * 16 + i);
    const auto first = static_cast<int32_t>(rows.runs.size());
    rows.runs.push_back({0, 1000});
    rows.runs.push_back({1000 + member * 16, 5});
    rows.first_run.push_back(first);
    rows.lengths.push_back(1005);
  }
  const AttentionPlan one = PlanAttention(rows.first_run, rows.lengths, rows.runs, {9, 3, 64, 1});
  ASSERT_EQ(one.tiles.size(), 1U);
  EXPECT_EQ(one.tiles[0].rows, 8);
  EXPECT_EQ(one.parts, 0);
  // Two threads: tiles of one KV head each, and parts for their first blocks.
  const AttentionPlan two = PlanAttention(rows.first_run, rows.lengths, rows.runs, {9, 3, 64, 2});
  ASSERT_EQ(two.tiles.size(), 3U);
  ASSERT_GT(two.parts_tiles.size(), 0U);
  ASSERT_EQ(two.parts_tiles.size() % 3, 0U);
  int64_t blocks = 0;
  for (const auto* tiles : {&two.tiles, &two.parts_tiles}) {
    for (const AttentionTile& tile : *tiles) {
      EXPECT_EQ(tile.rows, 8);
      EXPECT_EQ(tile.head_end - tile.head_begin, 3);
      blocks += tile.block_end - tile.block_begin;
    }
  }
  EXPECT_EQ(blocks, 3 * ((1005 + kKeyBlock - 1) / kKeyBlock)) << "every block of a KV head once";
}

TEST(AttentionPlanTest, PartsStayBounded) {
  Rng rng(2);
  const std::vector<int32_t> first(1, 0), lengths(1, 1 << 20);
  const std::vector<KvRun> runs = {{0, 1 << 20}};
  const AttentionPlan plan = PlanAttention(first, lengths, runs, {64, 8, 128, 256});
  EXPECT_LE(plan.parts * 64 * AttentionPartFloats(128) * 4, int64_t{8} << 20);
}

// A training batch: sequences that go on from any earlier one, as packing makes them.
Rows RandomTree(Rng& rng, int64_t longest) {
  Rows rows;
  std::vector<std::vector<int32_t>> sequences;
  for (uint64_t n = 1 + rng.Below(6); n > 0; --n) {
    std::vector<int32_t> slots;
    if (!sequences.empty() && rng.Below(4) > 0) {
      slots = sequences[rng.Below(sequences.size())];
      slots.resize(1 + rng.Below(slots.size()));
    }
    const auto own =
        static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(rng.Below(3) == 0 ? longest : 40)));
    const auto from = static_cast<int64_t>(slots.size());
    for (int64_t i = 0; i < own; ++i) slots.push_back(static_cast<int32_t>(rows.slots++));
    rows.Add(slots, from, rng);
    sequences.push_back(std::move(slots));
  }
  return rows;
}

TYPED_TEST(AttentionTest, BackwardIsTheDerivativeAndDoesNotDependOnTheOrderOfCells) {
  using T = TypeParam;
  constexpr double kRounding = std::is_same_v<T, float> ? 2e-5 : 2e-2;
  for (const auto& [name, kernels] : Ways<T>()) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(testing::Message() << name << " seed " << seed);
      Rng rng(100 + seed);
      const Shape s = RandomShape(rng);
      const Rows rows = RandomTree(rng, 500);
      const auto n = static_cast<int64_t>(rows.lengths.size());
      Memory<T> m(rows, s, rng);
      m.Run(kernels,
            PlanAttention(rows.first_run, rows.lengths, rows.runs, {s.heads, s.kv_heads, s.size, 2}));
      const std::vector<T> dout = Random<T>(rng, n * s.heads * s.size);
      const int64_t half = s.size / 2, padded = RoundUp(s.size, 16),
                    width = (s.heads + 2 * s.kv_heads) * s.size;
      std::vector<float> cos, sin;
      std::vector<int32_t> positions;
      for (int64_t r = 0; r < n; ++r) {
        positions.push_back(static_cast<int32_t>(r));
        for (int64_t c = 0; c < half; ++c) {
          const double angle = static_cast<double>(r * (c + 1)) * 0.1;
          cos.push_back(static_cast<float>(std::cos(angle))),
              sin.push_back(static_cast<float>(std::sin(angle)));
        }
      }
      const std::pair<int64_t, int64_t> all{0, n};
      const AttentionBackwardPlan plan = PlanAttentionBackward(rows.first_run, rows.lengths, rows.runs,
                                                               {&all, 1}, {s.heads, s.kv_heads, s.size});
      std::vector<T> first;
      for (int run = 0; run < 2; ++run) {
        std::vector<float> dq = m.Garbage(plan.lanes * s.kv_heads * padded),
                           dk = m.Garbage(n * s.kv_heads * padded), dv = dk,
                           scratch = m.Garbage(AttentionBackwardScratch(s.size));
        std::vector<T> dqkv(static_cast<size_t>(n * width));
        AttentionCellArgs<T> args{BackwardOf(m.args)};
        args.dout = dout.data(), args.cos = cos.data(), args.sin = sin.data();
        args.positions = positions.data(), args.dqkv = dqkv.data();
        args.tiles = plan.tiles.data(), args.dq = dq.data(), args.dk = dk.data(), args.dv = dv.data();
        for (int64_t kv = 0; kv < s.kv_heads; ++kv) {
          // Any order that keeps what waits behind what it waits for.
          std::vector<int32_t> waits = plan.waits, ready;
          for (size_t c = 0; c < waits.size(); ++c) {
            if (waits[c] == 0) ready.push_back(static_cast<int32_t>(c));
          }
          size_t done = 0;
          while (!ready.empty()) {
            std::swap(ready[rng.Below(ready.size())], ready.back());
            const auto cell = static_cast<size_t>(ready.back());
            ready.pop_back();
            ++done;
            kernels.attention_backward(plan.cells[cell], kv, args, scratch.data());
            for (const int32_t next : {plan.next_rows[cell], plan.next_slots[cell]}) {
              if (next >= 0 && --waits[static_cast<size_t>(next)] == 0) ready.push_back(next);
            }
          }
          ASSERT_EQ(done, plan.cells.size());
        }
        if (run == 0) first = dqkv;
        ASSERT_EQ(std::memcmp(first.data(), dqkv.data(), first.size() * sizeof(T)), 0);
      }
      // All of it in float64.
      std::vector<double> want(static_cast<size_t>(n * width), 0.0);
      const double scale = 1.0 / std::sqrt(static_cast<double>(s.size));
      const auto place = [&](int64_t row, int64_t head) {
        return static_cast<size_t>(row * width + head * s.size);
      };
      for (int64_t r = 0; r < n; ++r) {
        const std::vector<int32_t> slots = rows.SlotsOf(static_cast<size_t>(r));
        for (int64_t h = 0; h < s.heads; ++h) {
          const int64_t kv = h / (s.heads / s.kv_heads);
          const Weights64 w = PlainWeights(m, static_cast<size_t>(r), h, slots);
          const T* g = dout.data() + (r * s.heads + h) * s.size;
          const T* q = m.q.data() + (r * s.heads + h) * s.size;
          std::vector<double> dp;
          double delta = 0;
          for (size_t j = 0; j < slots.size(); ++j) {
            dp.push_back(0);
            for (int64_t c = 0; c < s.size; ++c)
              dp[j] += double{Wide(g[c])} *
                       Wide(m.v[static_cast<size_t>((slots[j] * s.kv_heads + kv) * s.size + c)]);
            delta += w.p[j] * dp[j];
          }
          for (size_t j = 0; j < slots.size(); ++j) {
            const double ds = w.p[j] * (dp[j] - delta) * scale;
            const T* k = m.k.data() + (slots[j] * s.kv_heads + kv) * s.size;
            for (int64_t c = 0; c < s.size; ++c) {
              const auto i = static_cast<size_t>(c);
              want[place(r, h) + i] += ds * Wide(k[c]);
              want[place(slots[j], s.heads + kv) + i] += ds * Wide(q[c]);
              want[place(slots[j], s.heads + s.kv_heads + kv) + i] += w.p[j] * Wide(g[c]);
            }
          }
        }
      }
      double largest = 0, error = 0, squares = 0;
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t h = 0; h < s.heads + 2 * s.kv_heads; ++h) {
          for (int64_t c = 0; c < s.size; ++c) {
            double x = want[place(r, h) + static_cast<size_t>(c)];
            if (h < s.heads + s.kv_heads) {  // turned back
              const size_t i = place(r, h) + static_cast<size_t>(c % half);
              const auto angle = static_cast<size_t>(r * half + c % half);
              const double a = want[i], b = want[i + static_cast<size_t>(half)];
              x = c < half ? a * cos[angle] + b * sin[angle] : b * cos[angle] - a * sin[angle];
            }
            const double e = Wide(first[place(r, h) + static_cast<size_t>(c)]) - x;
            largest = std::max(largest, std::fabs(e) / (1 + std::fabs(x)));
            error += e * e, squares += x * x;
          }
        }
      }
      EXPECT_LT(std::sqrt(error / squares), kRounding / 2);
      EXPECT_LT(largest, 4 * kRounding);
    }
  }
}

}  // namespace
}  // namespace tidepool::device
