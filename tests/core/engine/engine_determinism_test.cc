// A sample's record is a function of (weights, seed, sample, prompt, sampling): every schedule gives
// the bits that generation without an engine gives.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/rng.h"
#include "core/engine/engine.h"
#include "core/model/routing.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

struct Job {
  SampleId tid;
  GroupId gid;
  std::vector<int32_t> prompt;
  int64_t max_new = 0;
  SamplingParams sampling;
};

// Groups whose prompts begin alike, with lengths on and beside block borders.
std::vector<Job> Jobs(Rng& rng, int64_t groups, int32_t samples) {
  std::vector<int32_t> system(40);
  for (int32_t& id : system) id = static_cast<int32_t>(rng.Below(96));
  std::vector<Job> jobs;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<int32_t> prompt(system.begin(), system.begin() + rng.InRange(0, 40));
    for (int64_t i = rng.InRange(1, 20); i > 0; --i) prompt.push_back(static_cast<int32_t>(rng.Below(96)));
    if (rng.Chance(0.3)) prompt.resize((prompt.size() + 15) / 16 * 16, 5);
    for (int32_t k = 0; k < samples; ++k) {
      Job job{.tid = {g, 0, k},
              .gid = GroupId{g},
              .prompt = prompt,
              .max_new = rng.InRange(1, 24),
              .sampling = {}};
      if (rng.Chance(0.3)) job.sampling.temperature = 0.7F;
      if (rng.Chance(0.1)) job.sampling.temperature = 0;
      if (rng.Chance(0.3)) job.sampling.top_k = 20;
      if (rng.Chance(0.3)) job.sampling.top_p = 0.8F;
      jobs.push_back(job);
    }
  }
  return jobs;
}

constexpr uint64_t kSeed = 1234;

struct Kind {
  model::DType dtype;
  bool experts;
};

class EngineDeterminismTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // tiny products: a second thread only spins, and badly on a busy machine
    weights_ = TinyModel(GetParam().dtype, 3, GetParam().experts);
    Rng rng(8);
    jobs_ = Jobs(rng, 5, 4);
    for (const Job& job : jobs_) {
      want_[job.tid] = ReferenceGenerate(*weights_, kSeed, job.tid, job.prompt, job.max_new, job.sampling);
    }
  }

  std::unique_ptr<Engine> Make(EngineOptions options) {
    options.seed = kSeed;
    options.device = model::AnyDevice();
    options.record_routing = GetParam().experts;
    options.version = {0, 1};
    auto engine = Engine::Create(*weights_, options);
    TP_CHECK(engine.ok()) << engine.status().ToString();
    return std::move(engine).value();
  }

  // Runs every job through `engine` in chunks of at most `chunk` tokens, at most `concurrent` at a time, in
  // the order given; `disturb` is called between steps. Compares with the reference.
  void RunAndCompare(
      Engine& engine, const std::vector<Job>& order, int64_t chunk, size_t concurrent,
      const std::function<void()>& disturb = [] {}) {
    std::map<SampleId, Record> got;
    std::map<SampleId, const Job*> by_tid;
    std::vector<const Job*> queue;
    for (const Job& job : order) {
      queue.push_back(&job);
      by_tid[job.tid] = &job;
    }
    size_t next = 0;
    size_t in_flight = 0;
    const auto add = [&](const Job& job) {
      const Record& r = got[job.tid];
      ASSERT_TRUE(engine
                      .Add({.tid = job.tid,
                            .attempt = 0,
                            .gid = job.gid,
                            .prompt = job.prompt,
                            .generated = r.ids,
                            .max_new_tokens = chunk,
                            .max_total_new = job.max_new,
                            .sampling = job.sampling,
                            .routed = static_cast<int64_t>(r.ids.size())})
                      .ok());
      ++in_flight;
    };
    int64_t steps = 0;
    while (next < queue.size() || in_flight > 0) {
      while (next < queue.size() && in_flight < concurrent) add(*queue[next++]);
      const StepOutput out = engine.Step();
      for (const Delta& d : out.deltas) {
        Record& r = got[d.tid];
        r.ids.insert(r.ids.end(), d.ids.begin(), d.ids.end());
        r.logprobs.insert(r.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
        r.log_kept.insert(r.log_kept.end(), d.log_kept.begin(), d.log_kept.end());
        r.routing += d.routing;
        ASSERT_NE(d.finish, FinishReason::kError) << d.error;
        if (d.finish != FinishReason::kNone) --in_flight;
        if (d.finish == FinishReason::kChunk) add(*by_tid[d.tid]);
      }
      disturb();
      ASSERT_LT(++steps, 10000) << "no progress";
    }
    for (const Job& job : order) {
      EXPECT_EQ(got[job.tid].ids, want_[job.tid].ids) << ToString(job.tid);
      EXPECT_EQ(got[job.tid].logprobs, want_[job.tid].logprobs) << ToString(job.tid);
      EXPECT_EQ(got[job.tid].log_kept, want_[job.tid].log_kept) << ToString(job.tid);
      EXPECT_TRUE(got[job.tid].routing == want_[job.tid].routing) << ToString(job.tid);
    }
    EXPECT_FALSE(engine.HasWork());
  }

  std::unique_ptr<model::Weights> weights_;
  std::vector<Job> jobs_;
  std::map<SampleId, Record> want_;
};

TEST_P(EngineDeterminismTest, OneAtATimeIsTheReference) {
  auto engine = Make({.kv_cache_tokens = 256});
  for (const Job& job : jobs_) RunAndCompare(*engine, {job}, 100, 1);
}

TEST_P(EngineDeterminismTest, TogetherSharedAndUnchunked) {
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    auto engine = Make({.kv_cache_tokens = 4096});
    RunAndCompare(*engine, jobs_, 100, 1000);
  }
}

TEST_P(EngineDeterminismTest, ChunksOfOneToken) {
  auto engine = Make({.kv_cache_tokens = 4096});
  RunAndCompare(*engine, jobs_, 1, 1000);
}

TEST_P(EngineDeterminismTest, RandomSchedules) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<Job> order = jobs_;
    rng.Shuffle(std::span<Job>(order));
    EngineOptions options;
    options.block_tokens = int64_t{1} << rng.Below(6);
    options.max_running = rng.InRange(1, 20);
    options.max_batched_tokens = options.max_running + rng.Below(100);
    // From "one request fits" (everything is evicted) to plenty. The longest is 64 + 24 tokens.
    options.kv_cache_tokens = 96 + rng.Below(400);
    auto engine = Make(options);
    int64_t number = 1;
    RunAndCompare(*engine, order, rng.InRange(1, 30), static_cast<size_t>(rng.InRange(1, 20)), [&] {
      if (rng.Chance(0.1)) engine->ForgetGroup(GroupId{rng.Below(5)});
      if (rng.Chance(0.1)) {  // the same bytes under a new name
        engine->SetVersion({0, ++number}, rng.Chance(0.5) ? KvOnUpdate::kKeep : KvOnUpdate::kRecompute);
      }
      if (rng.Chance(0.03)) {
        engine->ReleaseMemory();
        ASSERT_TRUE(engine->AcquireMemory().ok());
      }
    });
  }
}

// A caller that has not got the routing of earlier chunks gets all of it.
TEST_P(EngineDeterminismTest, RoutingIsHandedOutFromWhereItIsAskedFor) {
  if (!GetParam().experts) return;
  auto engine = Make({.kv_cache_tokens = 256});
  const Job& job = jobs_.front();
  const Record& want = want_[job.tid];
  const auto have = std::min<size_t>(want.ids.size() - 1, 3);
  for (size_t routed = 0; routed <= have; ++routed) {
    ASSERT_TRUE(engine
                    ->Add({.tid = job.tid,
                           .gid = job.gid,
                           .prompt = job.prompt,
                           .generated = {want.ids.begin(), want.ids.begin() + static_cast<ptrdiff_t>(have)},
                           .max_new_tokens = 1,
                           .max_total_new = job.max_new,
                           .sampling = job.sampling,
                           .routed = static_cast<int64_t>(routed)})
                    .ok());
    const StepOutput out = engine->Step();
    ASSERT_EQ(out.deltas.size(), 1U);
    const auto row = static_cast<size_t>(model::RoutingBytes(weights_->spec()));
    EXPECT_TRUE(out.deltas[0].routing == want.routing.substr(routed * row, (have + 1 - routed) * row))
        << routed;
  }
  EXPECT_EQ(engine
                ->Add({.tid = job.tid,
                       .gid = job.gid,
                       .prompt = job.prompt,
                       .max_new_tokens = 1,
                       .max_total_new = 2,
                       .routed = 1})
                .code(),
            StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EngineDeterminismTest,
    testing::Values(Kind{model::DType::kFloat32, false}, Kind{model::DType::kBFloat16, false},
                    Kind{model::DType::kFloat32, true}, Kind{model::DType::kBFloat16, true}),
    [](const auto& info) {
      return std::string(info.param.dtype == model::DType::kFloat32 ? "float32" : "bfloat16") +
             (info.param.experts ? "_experts" : "");
    });

}  // namespace
}  // namespace tidepool::engine
