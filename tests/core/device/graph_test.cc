// Recorded kernels: what they bake in, and what they read anew.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/rng.h"
#include "tests/core/device/test_device.h"

namespace tidepool::device {
namespace {

// Rows that are sequences of their own: slots that all of them share, then some of their own.
struct Sequences {
  std::vector<int32_t> first_run, lengths;
  std::vector<KvRun> runs;

  static constexpr int32_t kShared = 1200, kOwn = 300;
  static int64_t Slots(int64_t rows) { return kShared + rows * kOwn; }
  Sequences(Rng& rng, int64_t rows, int64_t shared, int64_t own) {
    for (int64_t r = 0; r < rows; ++r) {
      first_run.push_back(static_cast<int32_t>(runs.size()));
      const auto alike = static_cast<int32_t>(rng.InRange(shared / 2, shared));
      const auto alone = static_cast<int32_t>(rng.InRange(1, own));
      if (alike > 0) {
        const auto cut = static_cast<int32_t>(rng.InRange(0, alike));
        runs.push_back({0, cut});
        runs.push_back({cut, alike - cut});
      }
      runs.push_back({kShared + static_cast<int32_t>(r) * kOwn, alone});
      lengths.push_back(alike + alone);
    }
  }
  [[nodiscard]] RowRunsOfHost OnHost() const { return {first_run, lengths, runs}; }
};

double AsDouble(float v) { return v; }
double AsDouble(BF16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
double Square(double v) { return v * v; }

template <typename T>
class GraphTest : public testing::Test {
 protected:
  static std::shared_ptr<Buffer> Noise(Device& device, Rng& rng, int64_t n) {
    std::vector<T> values(static_cast<size_t>(n));
    for (T& v : values) {
      const auto x = static_cast<float>(rng.Normal());
      if constexpr (std::is_same_v<T, float>) {
        v = x;
      } else {
        v.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
      }
    }
    return device.Put(std::span<const T>(values));
  }
};
using Types = testing::Types<float, BF16>;
TYPED_TEST_SUITE(GraphTest, Types);

TYPED_TEST(GraphTest, AttendsToTheBatchThatWasUploadedLast) {
  using T = TypeParam;
  const std::shared_ptr<Device> device = DeviceWithGraphs();
  Rng rng(3);
  constexpr int64_t kRows = 5, kSize = 64, kRuns = 3 * kRows;
  const HeadShape shape{.heads = 4, .kv_heads = 2, .head_size = kSize};
  const int64_t slots = Sequences::Slots(kRows), width = shape.heads * kSize;
  const auto q = this->Noise(*device, rng, kRows * width),
             k = this->Noise(*device, rng, slots * shape.kv_heads * kSize),
             v = this->Noise(*device, rng, slots * shape.kv_heads * kSize);
  const Array by_graph = device->Take(kRows, width, kDTypeOf<T>),
              plain = device->Take(kRows, width, kDTypeOf<T>);

  std::unique_ptr<GraphAttention> attention;
  std::unique_ptr<Graph> graph;
  std::shared_ptr<Buffer> memory;
  int recorded = 0, replaced = 0;
  // Longer, shorter, much longer, and shorter than that.
  for (const auto& [shared, own] :
       {std::pair<int64_t, int64_t>{0, 20}, {0, 22}, {0, 3}, {1200, 300}, {1000, 290}, {0, 1}, {300, 100}}) {
    const Sequences batch(rng, kRows, shared, own);
    const auto attend = [&](const RowRuns& keys, const AttentionWork& work, const Array& out) {
      device->Attention(AttentionArgs<T>{.heads = shape.heads,
                                         .kv_heads = shape.kv_heads,
                                         .head_size = kSize,
                                         .keys = keys,
                                         .q = static_cast<const T*>(q->data()),
                                         .k = static_cast<const T*>(k->data()),
                                         .v = static_cast<const T*>(v->data()),
                                         .out = out.view.template As<T>(),
                                         .work = &work});
    };
    // Rows, then runs, then the division.
    const auto words_of = [&](GraphAttention& a) {
      std::vector<int32_t> words = batch.first_run;
      words.insert(words.end(), batch.lengths.begin(), batch.lengths.end());
      for (const KvRun& run : batch.runs) words.insert(words.end(), {run.start, run.count});
      words.resize(2 * kRows + 2 * kRuns + static_cast<size_t>(a.words()));
      if (!a.Divide(batch.OnHost(), std::span(words).subspan(2 * kRows + 2 * kRuns))) words.clear();
      return words;
    };
    const auto keys_at = [&](const Buffer& words) {
      const auto* at = static_cast<const int32_t*>(words.data());
      return RowRuns{.rows = kRows,
                     .run_count = kRuns,
                     .slot_count = slots,
                     .first_run = at,
                     .lengths = at + kRows,
                     .runs = reinterpret_cast<const KvRun*>(at + 2 * kRows)};
    };
    std::vector<int32_t> words;
    if (attention != nullptr) words = words_of(*attention);
    if (words.empty()) {
      ++recorded;
      attention = device->PlanGraphAttention(batch.OnHost(), shape);
      words = words_of(*attention);
      ASSERT_FALSE(words.empty());
      memory = device->Put(std::span<const int32_t>(words));
      attention->Place(static_cast<const int32_t*>(memory->data()) + 2 * kRows + 2 * kRuns);
      graph = device->Record([&] { attend(keys_at(*memory), attention->work(), by_graph); });
    } else {
      ++replaced;
      device->Upload(static_cast<int32_t*>(memory->data()), std::span<const int32_t>(words));
      graph->Launch();
    }
    const auto batch_words = device->Put(std::span<const int32_t>(words));
    const auto work = device->PlanAttention(batch.OnHost(), shape);
    attend(keys_at(*batch_words), *work, plain);
    const auto bytes = [&](const Array& a) {
      return device->Read(static_cast<const unsigned char*>(a.view.data), a.view.bytes());
    };
    EXPECT_EQ(bytes(by_graph), bytes(plain)) << shared << ", " << own;
  }
  EXPECT_GE(recorded, 2);
  EXPECT_GE(replaced, 3);
}

// A device may have one kernel for all of them, which adds up in another order.
TYPED_TEST(GraphTest, ProductsThatFollowEachOtherGiveWhatOneKernelEachGives) {
  using T = TypeParam;
  const std::shared_ptr<Device> device = DeviceWithGraphs();
  Rng rng(11);
  constexpr int64_t kWidth = 192, kFf = 328, kOut = 80;
  for (const int64_t rows : {1, 3, 9}) {
    // As in a decoder: into the residual stream, a feed-forward after a norm, and the next block's first
    // product.
    const auto x = this->Noise(*device, rng, rows * kWidth),
               stream = this->Noise(*device, rng, rows * kWidth), norm1 = this->Noise(*device, rng, kWidth),
               norm2 = this->Noise(*device, rng, kWidth);
    const auto matrix = [&](int64_t n, int64_t k) { return this->Noise(*device, rng, n * k); };
    const auto o = matrix(kWidth, kWidth), gate_up = matrix(2 * kFf, kWidth), down = matrix(kWidth, kFf),
               qkv = matrix(kOut, kWidth);
    struct Results {
      Array out, mid, normed, wide, act, sum, last;
    };
    const auto take = [&] {
      const auto array = [&](int64_t cols) { return device->Take(rows, cols, kDTypeOf<T>); };
      return Results{array(kWidth), array(kWidth), array(kWidth), array(2 * kFf),
                     array(kFf),    array(kWidth), array(kOut)};
    };
    const auto at = [](const Array& a) { return a.view.template As<T>(); };
    const auto weights = [](const std::shared_ptr<Buffer>& b) { return static_cast<const T*>(b->data()); };
    const auto product = [&](int64_t n, int64_t k, const T* from, const std::shared_ptr<Buffer>& w, T* to) {
      return MultiplyArgs<T>{.rows = rows, .n = n, .k = k, .x = from, .w = weights(w), .y = to};
    };
    const auto norm = [&](const T* from, const Array& add, const Array& sum, const std::shared_ptr<Buffer>& w,
                          const Array& to) {
      return RmsNormArgs<T>{.rows = rows,
                            .d = kWidth,
                            .x = from,
                            .add = at(add),
                            .x_out = at(sum),
                            .weight = weights(w),
                            .eps = 1e-5F,
                            .out = at(to)};
    };
    const auto run = [&](const Results& r) {
      device->Multiply(product(kWidth, kWidth, weights(x), o, at(r.out)));
      device->FusedMultiply(
          FusedMultiplyArgs<T>{.norm = norm(weights(stream), r.out, r.mid, norm1, r.normed),
                               .multiply = product(2 * kFf, kWidth, at(r.normed), gate_up, at(r.wide)),
                               .glu = {.rows = rows, .ff = kFf, .gate_up = at(r.wide), .act = at(r.act)}});
      device->Multiply(product(kWidth, kFf, at(r.act), down, at(r.out)));
      device->FusedMultiply(
          FusedMultiplyArgs<T>{.norm = norm(at(r.mid), r.out, r.sum, norm2, r.normed),
                               .multiply = product(kOut, kWidth, at(r.normed), qkv, at(r.last))});
      device->AddBias(AddBiasArgs<T>{.rows = rows, .n = kOut, .bias = weights(norm1), .x = at(r.last)});
    };
    const Results recorded = take(), plain = take();
    const std::unique_ptr<Graph> graph = device->Record([&] { run(recorded); });
    ASSERT_NE(graph, nullptr);
    for (int round = 0; round < 3; ++round) {
      const std::vector<T> values =
          device->Read(weights(this->Noise(*device, rng, rows * kWidth)), rows * kWidth);
      device->Upload(static_cast<T*>(x->data()), std::span<const T>(values));
      graph->Launch();
      run(plain);
      for (const auto& [what, got, want] :
           {std::tuple("sum", &recorded.sum, &plain.sum), std::tuple("mid", &recorded.mid, &plain.mid),
            std::tuple("last", &recorded.last, &plain.last)}) {
        const std::vector<T> a = device->Read(at(*got), rows * got->view.cols),
                             b = device->Read(at(*want), rows * want->view.cols);
        double squares = 0, off = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          squares += Square(AsDouble(b[i]));
          off += Square(AsDouble(a[i]) - AsDouble(b[i]));
        }
        EXPECT_LE(std::sqrt(off / squares), sizeof(T) == 4 ? 1e-5 : 1e-2)
            << what << " of " << rows << " rows, round " << round;
      }
    }
  }
}

TEST(RecordingTest, AnExceptionEndsTheRecordingAndKernelsRunAgain) {
  const std::shared_ptr<Device> device = DeviceWithGraphs();
  const std::vector<float> zeros(16, 0.0F);
  const auto memory = device->Put(std::span<const float>(zeros));
  auto* p = static_cast<float*>(memory->data());
  const auto record = [&](const auto& raise) {
    int calls = 0;
    return device->Record([&] {
      device->Sigmoid({.n = 16, .x = p});
      if (++calls == 2) raise();
    });
  };
  EXPECT_THROW((void)record([] { throw std::runtime_error("a kernel that cannot be launched"); }),
               std::runtime_error);
  EXPECT_EQ(device->Read(p, 1)[0], 0.5F) << "it ran once";
  device->Upload(p, std::span<const float>(zeros));
  EXPECT_EQ(record([] { throw c10::OutOfMemoryError({"", "", 0}, "no memory"); }), nullptr);
  EXPECT_EQ(device->Read(p, 1)[0], 0.5F) << "it ran once";
  device->Sigmoid({.n = 16, .x = p});
  EXPECT_NEAR(device->Read(p, 1)[0], 0.622F, 1e-3) << "and nothing is recorded any more";
  EXPECT_NE(record([] {}), nullptr);
}

TEST(GraphDeathTest, WhatIsNoKernelIsFoundWhileItIsRecorded) {
  const std::shared_ptr<Device> device = DeviceWithGraphs();
  if (!device->host_memory() && device->name().starts_with("cuda")) GTEST_SKIP() << "a GPU says so itself";
  const auto memory = device->Put(std::span<const float>(std::vector<float>(16, 1.0F)));
  auto* p = static_cast<float*>(memory->data());
  const float one = 1;
  EXPECT_DEATH(device->Record([&] { device->Upload(p, std::span<const float>(&one, 1)); }), "Upload while");
  EXPECT_DEATH(device->Record([&] { (void)device->Read(p, 1); }), "Download while");
  EXPECT_DEATH(device->Record([&] { (void)device->Allocate(8); }), "Allocate while");
  EXPECT_DEATH(device->Record([&] { device->Zero(p, 4); }), "Zero while");

  // Once for its result, and once more with each launch: sigmoid of sigmoid.
  const std::unique_ptr<Graph> graph = device->Record([&] { device->Sigmoid({.n = 16, .x = p}); });
  EXPECT_NEAR(device->Read(p, 16)[15], 0.731F, 1e-3);
  graph->Launch();
  EXPECT_NEAR(device->Read(p, 16)[15], 0.675F, 1e-3);
}

}  // namespace
}  // namespace tidepool::device
