// Steps that only decode, by graphs: the same samples as without, and few recordings.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/model/graph_rows.h"
#include "tests/core/device/graph_device.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

TEST(GraphRowsTest, AreFewNumbersAndHaveRoomForTheirRows) {
  int64_t numbers = 0;
  for (int64_t rows = 1; rows <= model::kGraphRowsMax; ++rows) {
    const int64_t of_graph = model::GraphRows(rows);
    EXPECT_GE(of_graph, rows);
    EXPECT_LE(of_graph, rows + model::kFillRowsMax);
    EXPECT_EQ(model::GraphRows(of_graph), of_graph);
    numbers += of_graph == rows ? 1 : 0;
  }
  EXPECT_EQ(model::GraphRows(model::kGraphRowsMax), model::kGraphRowsMax);
  EXPECT_EQ(numbers, 4 + 7 + 6);
  EXPECT_EQ(model::GraphsInAll(model::kGraphRowsMax), numbers);
  EXPECT_EQ(model::GraphsInAll(1), 1);
  EXPECT_EQ(model::GraphsInAll(8), 4);
}

struct Kind {
  model::DType dtype;
  bool experts;
};

// All that a caller sees of an engine, and what became of graphs.
struct Outcome {
  std::map<SampleId, Record> records;
  int64_t recorded = 0, decode_steps = 0;
};

class EngineGraphsTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  std::unique_ptr<model::Weights> Model(int64_t max_position = 256, bool endless = false) {
    model::ModelSpec spec = TinyModel(GetParam().dtype, 3, GetParam().experts)->spec();
    spec.max_position = max_position;
    if (endless) spec.eos_token_ids.clear();
    if (GetParam().experts) spec.moe.experts = 8;  // 300 take minutes on emulated kernels
    auto weights = model::Weights::Create(spec, GetParam().dtype);
    TP_CHECK(weights.ok()) << weights.status().ToString();
    (*weights)->Initialize(3, 0.15);
    return std::move(weights).value();
  }
  std::unique_ptr<Engine> Make(const model::Weights& weights, bool graphs) {
    auto engine = Engine::Create(weights, {.seed = 5,
                                           .device = device_,
                                           .block_tokens = 4,
                                           .kv_cache_tokens = 2048,
                                           .graphs = graphs,
                                           .record_routing = GetParam().experts,
                                           .version = {0, 1}});
    TP_CHECK(engine.ok()) << engine.status().ToString();
    return std::move(engine).value();
  }
  static void Add(Engine& engine, int32_t k, int32_t prompt, int64_t new_tokens) {
    std::vector<int32_t> ids(static_cast<size_t>(prompt));
    for (int32_t i = 0; i < prompt; ++i) ids[static_cast<size_t>(i)] = (k + 7 * i) % 90;
    const Status added = engine.Add({.tid = {k, 0, 0},
                                     .gid = GroupId{k},
                                     .prompt = std::move(ids),
                                     .max_new_tokens = new_tokens,
                                     .max_total_new = new_tokens});
    TP_CHECK(added.ok()) << added.ToString();
  }
  // At most `steps`.
  static void Run(Engine& engine, int64_t steps, Outcome& outcome) {
    for (; steps > 0 && engine.HasWork(); --steps) {
      const StepOutput out = engine.Step();
      outcome.recorded += out.stats.recorded_graphs;
      outcome.decode_steps += out.stats.prefill_tokens == 0 && out.stats.decode_tokens > 0 ? 1 : 0;
      for (const Delta& d : out.deltas) {
        TP_CHECK(d.finish != FinishReason::kError) << d.error;
        Record& r = outcome.records[d.tid];
        r.ids.insert(r.ids.end(), d.ids.begin(), d.ids.end());
        r.logprobs.insert(r.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
        r.routing += d.routing;
      }
    }
  }
  void ExpectSame(const Outcome& with, const Outcome& without) {
    ASSERT_EQ(with.records.size(), without.records.size());
    EXPECT_EQ(without.recorded, 0);
    EXPECT_EQ(with.decode_steps, without.decode_steps);
    for (const auto& [tid, want] : without.records) {
      const Record& got = with.records.at(tid);
      EXPECT_EQ(got.ids, want.ids) << ToString(tid);
      EXPECT_TRUE(got.routing == want.routing) << ToString(tid);
      ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
      for (size_t i = 0; i < want.logprobs.size(); ++i) {
        if (device_->batch_invariant(GetParam().dtype)) {
          EXPECT_EQ(got.logprobs[i], want.logprobs[i]) << ToString(tid) << ", token " << i;
        } else {
          EXPECT_NEAR(got.logprobs[i], want.logprobs[i], 1e-4) << ToString(tid) << ", token " << i;
        }
      }
    }
  }

  std::shared_ptr<device::Device> device_ = device::DeviceWithGraphs();
};

// How often the host copies, and each way down it waits.
class CountingDevice : public device::GraphDevice {
 public:
  explicit CountingDevice(bool graphs) : graphs_(graphs) {}
  [[nodiscard]] bool has_graphs() const override { return graphs_; }
  void Upload(void* to, const void* from_host, int64_t bytes) override {
    ++uploads;
    GraphDevice::Upload(to, from_host, bytes);
  }
  void Download(void* to_host, const void* from, int64_t bytes) override {
    ++downloads;
    GraphDevice::Download(to_host, from, bytes);
  }
  int64_t uploads = 0, downloads = 0;

 private:
  const bool graphs_;
};

TEST_P(EngineGraphsTest, AStepThatDecodesUploadsItsBatchAndItsDrawsAndWaitsOnce) {
  if (GetParam().experts) GTEST_SKIP() << "their choices are read, too";
  const auto weights = Model(256, /*endless=*/true);
  for (const bool graphs : {false, true}) {
    const auto device = std::make_shared<CountingDevice>(graphs);
    device_ = device;
    auto engine = Make(*weights, graphs);
    for (int32_t k = 0; k < 5; ++k) Add(*engine, k, 60 + k, 40);
    Outcome outcome;
    Run(*engine, 4, outcome);
    // Sequences grow by runs: what is recorded anew has room for twice as many.
    while (graphs && outcome.recorded < 2) Run(*engine, 1, outcome);
    device->uploads = device->downloads = 0;
    const int64_t before = outcome.recorded;
    Run(*engine, 4, outcome);
    ASSERT_EQ(outcome.recorded, before) << "a step that records allocates and copies more";
    EXPECT_EQ(device->uploads, 2 * 4) << (graphs ? "with graphs" : "without");
    EXPECT_EQ(device->downloads, 4) << (graphs ? "with graphs" : "without");
  }
}

TEST_P(EngineGraphsTest, AStepIsRecordedOnceForEachNumberOfRows) {
  const auto weights = Model(256, /*endless=*/true);
  Outcome outcomes[2];
  for (const bool graphs : {false, true}) {
    auto engine = Make(*weights, graphs);
    for (int32_t k = 0; k < 5; ++k) Add(*engine, k, 20 + k, 4 + k);
    Run(*engine, 100, outcomes[graphs ? 1 : 0]);
  }
  ExpectSame(outcomes[1], outcomes[0]);
  EXPECT_EQ(outcomes[1].decode_steps, 7);
  EXPECT_EQ(outcomes[1].recorded, 4);  // of 8 rows, 4, 2 and 1
}

TEST_P(EngineGraphsTest, SamplesComeAndGoAndWeightsAndMemoryChangeInBetween) {
  Outcome outcomes[2];
  for (const bool graphs : {false, true}) {
    const auto weights = Model();
    auto engine = Make(*weights, graphs);
    Outcome& outcome = outcomes[graphs ? 1 : 0];
    for (int32_t k = 0; k < 3; ++k) Add(*engine, k, 9 + 5 * k, 12);
    Run(*engine, 4, outcome);
    weights->Initialize(99, 0.15);  // in place
    engine->SetVersion({0, 2}, KvOnUpdate::kKeep);
    const int64_t recorded = outcome.recorded;
    Run(*engine, 2, outcome);
    EXPECT_EQ(outcome.recorded, recorded) << "weights change where graphs read them";
    Add(*engine, 3, 6, 9);
    Run(*engine, 3, outcome);
    const model::MemoryUse plan = model::GenerationMemory(weights->spec(), GetParam().dtype,
                                                          {.kv_tokens = 2048,
                                                           .rows = 2048,
                                                           .keys = 256,
                                                           .record_routing = GetParam().experts,
                                                           .gpu = true,
                                                           .running = 256,
                                                           .graphs = graphs});
    EXPECT_EQ(engine->held().kv, plan.kv);
    EXPECT_LE(engine->held().workspace, plan.workspace);
    engine->ReleaseMemory();
    EXPECT_EQ(engine->held().total(), 0);
    ASSERT_TRUE(engine->AcquireMemory().ok());
    Run(*engine, 2, outcome);
    weights->Initialize(3, 0.15);
    engine->SetVersion({0, 3});
    Run(*engine, 100, outcome);
    EXPECT_FALSE(engine->HasWork());
  }
  ExpectSame(outcomes[1], outcomes[0]);
  EXPECT_GT(outcomes[1].recorded, 2);
}

TEST_P(EngineGraphsTest, TablesOfPositionsThatGrowAreReadWhereTheyAreThen) {
  const auto weights = Model(1024, /*endless=*/true);
  Outcome outcomes[2];
  for (const bool graphs : {false, true}) {
    auto engine = Make(*weights, graphs);
    Add(*engine, 0, 250, 12);
    Run(*engine, 100, outcomes[graphs ? 1 : 0]);
  }
  ExpectSame(outcomes[1], outcomes[0]);
  EXPECT_EQ(outcomes[1].recorded, 2);  // and once more at position 256
}

TEST_P(EngineGraphsTest, GoesOnWithoutWhereThereIsNoMemoryForAGraphUntilItTakesItsMemoryAgain) {
  const auto device = std::make_shared<device::GraphDevice>();
  device_ = device;
  const auto weights = Model(256, /*endless=*/true);
  Outcome outcomes[2];
  for (const bool graphs : {false, true}) {
    auto engine = Make(*weights, graphs);
    for (int32_t k = 0; k < 3; ++k) Add(*engine, k, 20 + k, 12 + k);
    device->no_memory_for_graphs = true;
    Run(*engine, 6, outcomes[graphs ? 1 : 0]);
    EXPECT_EQ(outcomes[graphs ? 1 : 0].recorded, 0);
    device->no_memory_for_graphs = false;
    Run(*engine, 2, outcomes[graphs ? 1 : 0]);
    EXPECT_EQ(outcomes[graphs ? 1 : 0].recorded, 0) << "it does not ask in every step";
    engine->ReleaseMemory();
    ASSERT_TRUE(engine->AcquireMemory().ok());
    Run(*engine, 100, outcomes[graphs ? 1 : 0]);
  }
  EXPECT_GT(outcomes[1].recorded, 0);
  ExpectSame(outcomes[1], outcomes[0]);
}

TEST_P(EngineGraphsTest, NoGraphRunsInScratchThatItsKernelsHaveLeft) {
  const auto device = std::make_shared<device::GraphDevice>();
  device_ = device;
  const auto weights = Model(256, /*endless=*/true);
  auto engine = Make(*weights, true);
  for (int32_t k = 0; k < 2; ++k) Add(*engine, k, 5, 6 + 4 * k);
  Outcome outcome;
  const auto recorded = [&](int64_t steps) {
    const int64_t before = outcome.recorded;
    Run(*engine, steps, outcome);
    return outcome.recorded - before;
  };
  EXPECT_EQ(recorded(3), 1);
  ++device->moves;  // for a kernel outside
  EXPECT_EQ(recorded(2), 1);
  EXPECT_EQ(recorded(100), 1);  // one row
}

TEST_P(EngineGraphsTest, SequencesThatOutgrowTheRoomOfAGraphAreRecordedAnewNowAndThen) {
  const auto weights = Model(256, /*endless=*/true);
  Outcome outcomes[2];
  for (const bool graphs : {false, true}) {
    auto engine = Make(*weights, graphs);
    for (int32_t k = 0; k < 2; ++k) Add(*engine, k, 5, 60);
    Run(*engine, 100, outcomes[graphs ? 1 : 0]);
  }
  ExpectSame(outcomes[1], outcomes[0]);
  EXPECT_EQ(outcomes[1].decode_steps, 59);
  EXPECT_LE(outcomes[1].recorded, 7);  // doubled runs, or keys that are half as many more
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EngineGraphsTest,
    testing::Values(Kind{model::DType::kFloat32, false}, Kind{model::DType::kBFloat16, false},
                    Kind{model::DType::kFloat32, true}, Kind{model::DType::kBFloat16, true}),
    [](const auto& info) {
      return std::string(info.param.dtype == model::DType::kFloat32 ? "float32" : "bfloat16") +
             (info.param.experts ? "_experts" : "");
    });

}  // namespace
}  // namespace tidepool::engine
