// Runs that share an engine: a step of one is a step of all, and each gets what it gets alone.
#include "workers/device/shared_engine.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/model/reference.h"

namespace tidepool::workers {
namespace {

using engine::Record;

class SharedEngineTest : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 9;
  SharedEngineTest() : base_(engine::TinyModel(model::DType::kFloat32, 3)) {
    at::set_num_threads(1);
    for (uint64_t seed = 9; seed < 11; ++seed) adapters_.push_back(model::Adapted(base_, seed));
    engine::EngineOptions options;
    options.kv_cache_tokens = 512;
    options.max_running = 8;
    auto made = engine::Engine::Create(*base_, options);
    TP_CHECK(made.ok()) << made.status().ToString();
    shared_ = std::make_shared<SharedEngine>(base_, std::move(made).value());
  }

  std::unique_ptr<EngineSeat> Sit(size_t which) {
    auto seat = std::make_unique<EngineSeat>(shared_, *adapters_[which], Version{0, 1}, /*seed=*/which);
    TP_CHECK(!seat->HasWork() && seat->AcquireMemory().ok());
    return seat;
  }
  // The samples of all runs have the same names and prompts.
  static void Ask(EngineSeat& seat, int32_t sample, int32_t attempt = 0) {
    engine::ChunkRequest request;
    request.tid = {0, 0, sample};
    request.attempt = attempt;
    request.gid = GroupId{0};
    request.prompt = Prompt();
    request.max_new_tokens = request.max_total_new = kTokens;
    const Status added = seat.Add(std::move(request));
    ASSERT_TRUE(added.ok()) << added.ToString();
  }
  static std::vector<int32_t> Prompt() { return {5, 6, 7, 8, 9}; }
  [[nodiscard]] Record Alone(size_t which, int32_t sample) const {
    return engine::ReferenceGenerate(*adapters_[which], which, {0, 0, sample}, Prompt(), kTokens, {});
  }
  static void Take(engine::StepOutput out, std::map<int32_t, Record>& got) {
    for (engine::Delta& d : out.deltas) {
      Record& r = got[d.tid.sample];
      r.ids.insert(r.ids.end(), d.ids.begin(), d.ids.end());
      r.logprobs.insert(r.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    }
  }
  void ExpectAsAlone(size_t which, std::map<int32_t, Record>& got, int32_t samples) const {
    for (int32_t k = 0; k < samples; ++k) {
      EXPECT_EQ(got[k].ids, Alone(which, k).ids) << which << " " << k;
      EXPECT_EQ(got[k].logprobs, Alone(which, k).logprobs) << which << " " << k;
    }
  }

  const std::shared_ptr<const model::Weights> base_;
  std::vector<std::unique_ptr<model::Weights>> adapters_;
  std::shared_ptr<SharedEngine> shared_;
};

TEST_F(SharedEngineTest, AStepOfOneIsOneOfAll) {
  const auto first = Sit(0), second = Sit(1);
  for (int32_t k = 0; k < 3; ++k) Ask(*first, k), Ask(*second, k);
  std::map<int32_t, Record> of_first, of_second;
  int64_t running = 0;
  engine::RowCounts rows_of_first, rows_of_second;
  while (first->HasWork()) {
    engine::StepOutput out = first->Step();
    running = std::max(running, out.stats.running);
    rows_of_first += out.stats;
    Take(std::move(out), of_first);
  }
  EXPECT_EQ(running, 6) << "rows of both runs in one batch";
  ASSERT_TRUE(second->HasWork());
  // All that it asked for was made by the steps of the other one, but for answers that are longer.
  while (second->HasWork()) {
    engine::StepOutput out = second->Step();
    rows_of_second += out.stats;
    Take(std::move(out), of_second);
  }
  for (const auto& [rows, got] : {std::pair(&rows_of_first, &of_first), {&rows_of_second, &of_second}}) {
    int64_t tokens = 0;
    for (const auto& [k, record] : *got) tokens += static_cast<int64_t>(record.ids.size());
    EXPECT_EQ(rows->sampled_tokens, tokens) << "each is told of its own rows, once";
    EXPECT_EQ(rows->prompt_tokens, 15);
    EXPECT_EQ(rows->prefill_tokens, 5) << "of the first sample; the others share its KV";
  }
  ExpectAsAlone(0, of_first, 3);
  ExpectAsAlone(1, of_second, 3);
}

TEST_F(SharedEngineTest, WhoLeavesOrIsDrainedChangesNothingForTheOther) {
  const auto stays = Sit(0);
  auto leaves = Sit(1);
  std::map<int32_t, Record> got;
  for (int32_t k = 0; k < 2; ++k) Ask(*stays, k), Ask(*leaves, k);
  for (int i = 0; i < 3; ++i) Take(stays->Step(), got);
  EXPECT_EQ(leaves->Drain().size(), 2U);
  EXPECT_FALSE(leaves->HasWork()) << "what the other one's steps have made is made again";
  Take(stays->Step(), got);
  std::map<int32_t, Record> again;
  Ask(*leaves, 0, /*attempt=*/1);
  while (leaves->HasWork()) Take(leaves->Step(), again);
  ExpectAsAlone(1, again, 1);
  Ask(*leaves, 1, 1);
  leaves.reset();
  while (stays->HasWork()) Take(stays->Step(), got);
  ExpectAsAlone(0, got, 2);
}

TEST_F(SharedEngineTest, WhoComesWhenTheMemoryWasReleasedHasSome) {
  const auto first = Sit(0);
  first->ReleaseMemory();
  const auto second = Sit(1);
  std::map<int32_t, Record> got;
  Ask(*second, 0);
  for (int i = 0; i < 3 * kTokens && second->HasWork(); ++i) Take(second->Step(), got);
  ExpectAsAlone(1, got, 1);
}

TEST_F(SharedEngineTest, ASeatWithFurtherAdaptersTakesRequestsOfEach) {
  EngineSeat seat([&] {
    engine::EngineOptions options;
    options.kv_cache_tokens = 512;
    options.max_running = 8;
    return std::move(engine::Engine::Create(*base_, options)).value();
  }());
  seat.AddAdapter(model::Adapted(base_, 9), {0, 1}, /*seed=*/0);
  engine::ChunkRequest request;
  request.tid = {0, 0, 0};
  request.prompt = Prompt();
  request.max_new_tokens = request.max_total_new = kTokens;
  request.adapter = 1;
  EXPECT_EQ(seat.Add(request).code(), StatusCode::kInvalidArgument);
  request.adapter = 0;
  ASSERT_TRUE(seat.Add(request).ok());
  std::map<int32_t, Record> got;
  Take(seat.Step(), got);
  EXPECT_TRUE(seat.HasWork());
  seat.ReleaseMemory();
  EXPECT_FALSE(seat.HasWork());
  ASSERT_TRUE(seat.AcquireMemory().ok());
  while (seat.HasWork()) Take(seat.Step(), got);
  EXPECT_EQ(got[0].ids, Alone(0, 0).ids);
  EXPECT_FALSE(seat.Cancel({0, 0, 0}, 0));
}

}  // namespace
}  // namespace tidepool::workers
