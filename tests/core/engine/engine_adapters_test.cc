// Several adapters over one model in one engine: what one gives is what it gives alone, whatever the others
// do.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/engine/engine.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

struct Kind {
  model::DType dtype;
  bool experts;
};

// Adapters of unlike ranks, targets and scales, each with noise of its own; the first is the model alone.
class AdapterEngineTest {
 public:
  explicit AdapterEngineTest(Kind kind) : base_(TinyModel(kind.dtype, 3, kind.experts)) {
    at::set_num_threads(1);  // tiny products: a second thread only spins, and badly on a busy machine
    adapters_.push_back(model::Adapted(base_, 9, 8));
    adapters_.push_back(
        model::Adapted(base_, 10, 3, 1, {model::AdapterTarget::kQ, model::AdapterTarget::kHead}));
    adapters_.push_back(
        model::Adapted(base_, 11, 5, 10, {model::AdapterTarget::kO, model::AdapterTarget::kEmbedding}));
  }
  [[nodiscard]] std::unique_ptr<Engine> Make(EngineOptions options) const {
    options.seed = Seed(kOwnWeights);
    options.device = model::AnyDevice();
    options.version = {0, 1};
    auto engine = Engine::Create(*base_, options);
    TP_CHECK(engine.ok()) << engine.status().ToString();
    for (int32_t i = 0; i < count(); ++i)
      EXPECT_EQ((*engine)->AddAdapter(*adapters_[static_cast<size_t>(i)], {0, 10 * (i + 1)}, Seed(i)), i);
    return std::move(engine).value();
  }
  [[nodiscard]] int32_t count() const { return static_cast<int32_t>(adapters_.size()); }
  [[nodiscard]] const model::Weights& Of(int32_t which) const {
    return which == kOwnWeights ? *base_ : *adapters_[static_cast<size_t>(which)];
  }
  static uint64_t Seed(int32_t which) { return 100 + static_cast<uint64_t>(which + 1); }
  static std::vector<int32_t> Prompt(int32_t n) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < n; ++i) ids.push_back(7 * i % 90);
    return ids;
  }

 protected:
  const std::shared_ptr<const model::Weights> base_;
  std::vector<std::unique_ptr<model::Weights>> adapters_;
};

struct Job {
  SampleId tid;
  GroupId gid;
  std::vector<int32_t> prompt;
  int64_t max_new = 0;
};

class AdaptersEngineDeterminismTest : public AdapterEngineTest, public testing::TestWithParam<Kind> {
 protected:
  AdaptersEngineDeterminismTest() : AdapterEngineTest(GetParam()) {}
};

// The same samples of the same prompts under every adapter, in chunks, on every schedule, while one of them
// gets new versions, is drained, loses samples, or is taken out and put in again.
TEST_P(AdaptersEngineDeterminismTest, EachGivesWhatItGivesAloneOnEverySchedule) {
  Rng jobs_rng(8);
  std::vector<Job> jobs;
  for (int64_t g = 0; g < 3; ++g) {
    std::vector<int32_t> prompt = Prompt(20);  // they begin alike
    for (int64_t i = jobs_rng.InRange(1, 20); i > 0; --i)
      prompt.push_back(static_cast<int32_t>(jobs_rng.Below(96)));
    for (int32_t k = 0; k < 2; ++k)
      jobs.push_back(
          {.tid = {g, 0, k}, .gid = GroupId{g}, .prompt = prompt, .max_new = jobs_rng.InRange(1, 20)});
  }
  std::map<std::pair<int32_t, SampleId>, Record> want;
  for (int32_t a = kOwnWeights; a < count(); ++a) {
    for (const Job& job : jobs)
      want[{a, job.tid}] = ReferenceGenerate(Of(a), Seed(a), job.tid, job.prompt, job.max_new, {});
  }
  EXPECT_NE((want[{0, {0, 0, 0}}].logprobs), (want[{1, {0, 0, 0}}].logprobs));

  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    EngineOptions options;
    options.block_tokens = int64_t{1} << rng.Below(6);
    options.max_running = rng.InRange(1, 20);
    options.max_batched_tokens = options.max_running + rng.Below(100);
    options.kv_cache_tokens = 96 + rng.Below(400);
    auto engine = Make(options);
    std::map<int32_t, int32_t> number;  // in the engine, of each
    for (int32_t a = kOwnWeights; a < count(); ++a) number[a] = a;

    std::map<std::pair<int32_t, SampleId>, Record> got;
    std::vector<std::pair<int32_t, const Job*>> queue;
    for (const Job& job : jobs)
      for (int32_t a = kOwnWeights; a < count(); ++a) queue.emplace_back(a, &job);
    rng.Shuffle(std::span(queue));
    const int64_t chunk = rng.InRange(1, 12);
    std::map<std::pair<int32_t, SampleId>, const Job*> running;
    const auto add = [&](int32_t a, const Job& job) {
      const Record& r = got[{a, job.tid}];
      ASSERT_EQ(engine->Add({.tid = job.tid,
                             .gid = job.gid,
                             .prompt = job.prompt,
                             .generated = r.ids,
                             .max_new_tokens = chunk,
                             .max_total_new = job.max_new,
                             .adapter = number[a]}),
                OkStatus());
      running[{a, job.tid}] = &job;
    };
    const auto again = [&](int32_t a) {  // all of one that have ended without being finished
      const auto before = running;
      for (const auto& [key, job] : before)
        if (key.first == a) add(a, *job);
    };
    int64_t version = 1000;
    for (int steps = 0; !queue.empty() || !running.empty(); ++steps) {
      ASSERT_LT(steps, 10000) << "no progress";
      while (!queue.empty() && running.size() < 16) {
        add(queue.back().first, *queue.back().second);
        queue.pop_back();
      }
      for (const Delta& d : engine->Step().deltas) {
        const int32_t a =
            std::ranges::find_if(number, [&](const auto& n) { return n.second == d.adapter; })->first;
        ASSERT_NE(d.finish, FinishReason::kError) << d.error;
        Record& r = got[{a, d.tid}];
        r.ids.insert(r.ids.end(), d.ids.begin(), d.ids.end());
        r.logprobs.insert(r.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
        const Job* job = running.at({a, d.tid});
        if (d.finish != FinishReason::kNone) running.erase({a, d.tid});
        if (d.finish == FinishReason::kChunk) add(a, *job);
      }
      const auto one = static_cast<int32_t>(rng.InRange(0, count() - 1));
      if (rng.Chance(0.1)) engine->ForgetGroup(GroupId{rng.Below(3)}, number[one]);
      if (rng.Chance(0.1)) {  // the same bytes under a new name
        engine->SetVersion(number[one], {0, ++version},
                           rng.Chance(0.5) ? KvOnUpdate::kKeep : KvOnUpdate::kRecompute);
      }
      if (rng.Chance(0.05)) {
        for (const Delta& d : engine->Drain(number[one])) EXPECT_EQ(d.adapter, number[one]);
        again(one);
      }
      if (rng.Chance(0.05) && !running.empty()) {
        const auto [key, job] = *running.begin();
        EXPECT_TRUE(engine->Cancel(key.second, 0, number[key.first]));
        EXPECT_FALSE(engine->Cancel(key.second, 0, number[key.first]));
        add(key.first, *job);
      }
      if (rng.Chance(0.05)) {
        engine->RemoveAdapter(number[one]);
        number[one] = engine->AddAdapter(Of(one), {0, ++version}, Seed(one));
        again(one);
      }
      if (rng.Chance(0.03)) {
        engine->ReleaseMemory();
        ASSERT_TRUE(engine->AcquireMemory().ok());
      }
    }
    for (const auto& [key, record] : want) {
      EXPECT_EQ(got[key].ids, record.ids) << "adapter " << key.first << ", " << ToString(key.second);
      EXPECT_EQ(got[key].logprobs, record.logprobs)
          << "adapter " << key.first << ", " << ToString(key.second);
    }
    EXPECT_FALSE(engine->HasWork());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdaptersEngineDeterminismTest,
                         testing::Values(Kind{model::DType::kFloat32, false},
                                         Kind{model::DType::kBFloat16, false},
                                         Kind{model::DType::kBFloat16, true}),
                         [](const auto& info) {
                           return std::string(info.param.dtype == model::DType::kFloat32 ? "float32"
                                                                                         : "bfloat16") +
                                  (info.param.experts ? "_experts" : "");
                         });

class EngineAdaptersTest : public AdapterEngineTest, public testing::Test {
 protected:
  EngineAdaptersTest() : AdapterEngineTest({model::DType::kFloat32, false}) {}
  static ChunkRequest Request(int32_t adapter, int32_t sample = 0, int64_t max_new = 8) {
    return {.tid = {1, 0, sample},
            .gid = GroupId{1},
            .prompt = Prompt(40),
            .max_new_tokens = max_new,
            .max_total_new = max_new + 1,
            .adapter = adapter};
  }
};

TEST_F(EngineAdaptersTest, EqualPromptsOfTwoAdaptersShareNothing) {
  auto engine = Make({.kv_cache_tokens = 1024});
  for (int32_t a = kOwnWeights; a < count(); ++a) {
    for (int32_t k = 0; k < 2; ++k) ASSERT_TRUE(engine->Add(Request(a, k)).ok());
    EXPECT_EQ(engine->Add(Request(a)).code(), StatusCode::kAlreadyExists);
  }
  const StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 40 * (count() + 1)) << "each once";
  EXPECT_EQ(out.stats.prefix_hit_tokens, 40 * (count() + 1)) << "for its own second sample";
  EXPECT_EQ(out.deltas.size(), 2U * (static_cast<size_t>(count()) + 1));
  std::map<int32_t, Version> versions;
  for (const Delta& d : out.deltas) versions[d.adapter] = d.version;
  EXPECT_EQ(versions, (std::map<int32_t, Version>{{-1, {0, 1}}, {0, {0, 10}}, {1, {0, 20}}, {2, {0, 30}}}));
}

TEST_F(EngineAdaptersTest, ANewVersionOfOneLeavesTheKvOfTheOthers) {
  for (const KvOnUpdate kv : {KvOnUpdate::kRecompute, KvOnUpdate::kKeep}) {
    auto engine = Make({.kv_cache_tokens = 1024});
    for (int32_t a = 0; a < count(); ++a) ASSERT_TRUE(engine->Add(Request(a)).ok());
    (void)engine->Step();
    engine->SetVersion(1, {0, 21}, kv);
    StepOutput out = engine->Step();
    EXPECT_EQ(out.stats.prefill_tokens, kv == KvOnUpdate::kRecompute ? 41 : 0);
    EXPECT_EQ(out.stats.decode_tokens, kv == KvOnUpdate::kRecompute ? 2 : 3);
    for (const Delta& d : out.deltas)
      EXPECT_EQ(d.version, (Version{0, d.adapter == 1 ? 21 : 10 * (d.adapter + 1)}));
    // The prompt of another adapter is found, that of this one's old version is not.
    ASSERT_TRUE(engine->Add(Request(0, 5)).ok());
    EXPECT_EQ(engine->Step().stats.prefix_hit_tokens, 40);
    ASSERT_TRUE(engine->Add(Request(1, 5)).ok());
    out = engine->Step();
    EXPECT_EQ(out.stats.prefix_hit_tokens, kv == KvOnUpdate::kRecompute ? 40 : 0);
  }
}

TEST_F(EngineAdaptersTest, ANewVersionOfTheModelIsOneOfAllItsAdapters) {
  auto engine = Make({.kv_cache_tokens = 1024});
  for (int32_t a = kOwnWeights; a < count(); ++a) ASSERT_TRUE(engine->Add(Request(a)).ok());
  (void)engine->Step();
  engine->SetVersion({0, 2});
  const StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 41 * (count() + 1)) << "no KV of before is of use";
  for (const Delta& d : out.deltas)
    EXPECT_EQ(d.version, (Version{0, d.adapter == kOwnWeights ? 2 : 10 * (d.adapter + 1)}));
}

TEST_F(EngineAdaptersTest, OneIsDrainedOrTakenOutWhileTheOthersGoOn) {
  auto engine = Make({.kv_cache_tokens = 1024});
  for (int32_t a = kOwnWeights; a < count(); ++a) {
    ASSERT_TRUE(engine->Add(Request(a)).ok());
    ASSERT_TRUE(engine->Add(Request(a, 1)).ok());
  }
  (void)engine->Step();
  const std::vector<Delta> ended = engine->Drain(1);
  EXPECT_EQ(ended.size(), 2U);
  for (const Delta& d : ended) {
    EXPECT_EQ(d.adapter, 1);
    EXPECT_EQ(d.finish, FinishReason::kCancelled);
  }
  EXPECT_FALSE(engine->Cancel({1, 0, 0}, 0, 1)) << "it is gone";
  EXPECT_TRUE(engine->Cancel({1, 0, 0}, 0, 2)) << "its namesake is not";
  EXPECT_EQ(engine->Step().deltas.size(), 5U);
  ASSERT_TRUE(engine->Add(Request(1)).ok());
  EXPECT_EQ(engine->Step().stats.prefix_hit_tokens, 40) << "what was drained left its KV";

  engine->RemoveAdapter(1);
  const Status gone = engine->Add(Request(1, 7));
  EXPECT_EQ(gone.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(gone.ToString(), testing::HasSubstr("no adapter 1"));
  EXPECT_EQ(engine->Step().deltas.size(), 5U);
  const double usage = engine->Step().stats.kv_usage;
  EXPECT_EQ(engine->AddAdapter(Of(1), {0, 1}, 5), 3) << "no number is used again";
  ASSERT_TRUE(engine->Add(Request(3, 7)).ok());
  const StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 40) << "nothing of it was left";
  EXPECT_GT(out.stats.kv_usage, usage);
  EXPECT_EQ(engine->Drain().size(), 6U);
  EXPECT_FALSE(engine->HasWork());
}

}  // namespace
}  // namespace tidepool::engine
