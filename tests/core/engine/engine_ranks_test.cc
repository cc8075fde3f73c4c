// An engine whose model is cut between ranks, as threads, against one that has all of it: the same tokens
// and log-probabilities, to the bit where sums are cut as one rank cuts them, whatever is shared, cut into
// chunks, evicted or loaded on the way.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/engine/engine.h"
#include "core/engine/follower.h"
#include "core/engine/ranks.h"
#include "core/train/part_ranks.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

using model::DType;
using std::chrono::milliseconds;

// Whatever of a model is cut in another way; a vocabulary that no number of ranks divides.
model::ModelSpec CutSpec(bool plain) {
  model::ModelSpec s = model::TinySpec();
  s.architecture = plain ? "llama" : "qwen3";
  s.vocab_size = 97;
  s.hidden_size = 48;
  s.intermediate_size = 36;
  s.layers = 3;
  s.kv_heads = 6;
  s.heads = 12;
  s.head_size = 8;
  s.max_position = 128;
  s.qk_norm = !plain;
  s.qkv_bias = s.o_bias = s.mlp_bias = plain;
  s.tie_embeddings = !plain;
  s.eos_token_ids = {96};
  return s;
}

std::unique_ptr<model::Weights> WeightsOf(const model::ModelSpec& spec, DType dtype, uint64_t seed) {
  auto weights = std::move(model::Weights::Create(spec, dtype)).value();
  model::Randomize(*weights, seed, 0.2);
  return weights;
}

struct Record {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

// Groups of samples that share prompts, and prompts that begin alike, in chunks, on a cache that has no room
// for all of them; new weights in the middle; some are cancelled, a group is forgotten.
// `load`: puts the second weights in place.
std::map<SampleId, Record> Play(Engine& engine, const std::function<void()>& load) {
  Rng rng(11);
  struct Job {
    ChunkRequest request;
    bool more = true;
  };
  std::map<SampleId, Job> jobs;
  std::vector<int32_t> system(30);
  for (int32_t& id : system) id = static_cast<int32_t>(rng.Below(96));
  for (int64_t g = 0; g < 5; ++g) {
    std::vector<int32_t> prompt(system.begin(), system.begin() + rng.InRange(0, 30));
    for (int64_t i = rng.InRange(1, 20); i > 0; --i) prompt.push_back(static_cast<int32_t>(rng.Below(96)));
    for (int32_t k = 0; k < 3; ++k) {
      Job job;
      job.request = {.tid = {g, 0, k},
                     .gid = GroupId{g},
                     .prompt = prompt,
                     .max_new_tokens = 5,
                     .max_total_new = rng.InRange(2, 16)};
      // A draw shows rounding where two tokens are next to each other; one of three samples draws all the
      // same.
      job.request.sampling.temperature = k == 0 ? 0.5F : 0.0F;
      jobs.emplace(job.request.tid, job);
    }
  }
  std::map<SampleId, Record> records;
  for (auto& [tid, job] : jobs) EXPECT_TRUE(engine.Add(job.request).ok());
  for (int64_t step = 0; engine.HasWork() && step < 1000; ++step) {
    if (step == 6) {
      load();
      engine.SetVersion({0, 2});
    }
    if (step == 9) (void)engine.Cancel({4, 0, 2}, 0);
    const StepOutput out = engine.Step();
    for (const Delta& d : out.deltas) {
      EXPECT_NE(d.finish, FinishReason::kError) << d.error;
      Record& record = records[d.tid];
      record.ids.insert(record.ids.end(), d.ids.begin(), d.ids.end());
      record.logprobs.insert(record.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
      if (d.finish == FinishReason::kChunk) {
        ChunkRequest next = jobs.at(d.tid).request;
        next.generated = record.ids;
        EXPECT_TRUE(engine.Add(std::move(next)).ok());
      } else if (d.finish != FinishReason::kNone && d.tid.sample == 1) {
        engine.ForgetGroup(jobs.at(d.tid).request.gid);
      }
    }
  }
  EXPECT_FALSE(engine.HasWork());
  return records;
}

EngineOptions Options() {
  EngineOptions o;
  o.seed = 5;
  o.device = model::AnyDevice();
  o.block_tokens = 8;
  o.kv_cache_tokens = 200;    // not for all at once
  o.max_batched_tokens = 24;  // prompts come in pieces
  o.max_running = 9;
  o.version = {0, 1};
  return o;
}

std::map<SampleId, Record> PlayWhole(const model::ModelSpec& spec, DType dtype) {
  const auto weights = WeightsOf(spec, dtype, 3), next = WeightsOf(spec, dtype, 4);
  auto engine = Engine::Create(*weights, Options());
  TP_CHECK(engine.ok()) << engine.status().message();
  return Play(**engine,
              [&] { std::ranges::copy(std::as_const(*next).bytes(), weights->Overwrite().begin()); });
}

// `parts`: followers have their part of the weights alone, and the leader, too.
std::map<SampleId, Record> PlayCut(const model::ModelSpec& spec, DType dtype, int n, bool parts) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  const auto first = WeightsOf(spec, dtype, 3), second = WeightsOf(spec, dtype, 4);
  std::map<SampleId, Record> records;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto group = comm::MakeGroup(
          {.rendezvous = rendezvous, .rank = rank, .size = n, .shared_folder = ::testing::TempDir()});
      ASSERT_TRUE(group.ok()) << group.status().message();
      train::PartRanks peers(**group);
      Ranks ranks(**group, peers);
      auto weights =
          std::move(model::Weights::Create(spec, dtype, {}, parts ? ranks.part() : model::Part())).value();
      const auto take = [&](const model::Weights& from) {
        if (parts)
          weights->TakePart(from.bytes());
        else
          std::ranges::copy(from.bytes(), weights->Overwrite().begin());
      };
      take(*first);
      EngineOptions options = Options();
      options.ranks = &ranks;
      if (rank == 0) {
        auto engine = Engine::Create(*weights, options);
        ASSERT_TRUE(engine.ok()) << engine.status().message();
        records = Play(**engine, [&] {
          ranks.Tell({Order::kOther, "load"});
          take(*second);
          const std::vector<std::string> said = ranks.Answers("", 0);
          for (int other = 1; other < n; ++other) EXPECT_EQ(said[static_cast<size_t>(other)], "loaded");
        });
        // Released and taken again: nothing of before is used.
        (void)(*engine)->ReleaseMemory();
        EXPECT_TRUE((*engine)->AcquireMemory().ok());
        ranks.Tell({Order::kOther, "end"});
        return;
      }
      auto follower = Follower::Create(*weights, options);
      ASSERT_TRUE(follower.ok()) << follower.status().message();
      while (true) {
        const auto order = ranks.Next(milliseconds(20));
        if (!order) continue;
        if (order->kind != Order::kOther) {
          (*follower)->Do(*order);
        } else if (order->body == "load") {
          take(*second);
          (*follower)->WeightsChanged();
          (void)ranks.Answers("loaded", 0);
        } else {
          return;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return records;
}

struct Kind {
  int ranks;
  bool parts, plain;
};

class EngineRanksTest : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EngineRanksTest,
                         testing::Values(Kind{2, false, false}, Kind{2, true, true}, Kind{3, true, false},
                                         Kind{3, false, true}, Kind{6, true, false}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) +
                                  (info.param.parts ? "_parts" : "_whole") +
                                  (info.param.plain ? "_plain" : "_normed");
                         });

TEST_P(EngineRanksTest, GenerateWhatAnEngineWithTheWholeModelDoes) {
  at::set_num_threads(1);
  const Kind kind = GetParam();
  const model::ModelSpec spec = CutSpec(kind.plain);
  const auto whole = PlayWhole(spec, DType::kFloat32);
  const auto cut = PlayCut(spec, DType::kFloat32, kind.ranks, kind.parts);
  ASSERT_EQ(cut.size(), whole.size());
  int64_t tokens = 0;
  for (const auto& [tid, want] : whole) {
    const Record& got = cut.at(tid);
    ASSERT_EQ(got.ids, want.ids) << ToString(tid);
    // Up to four ranks.
    if (kind.ranks <= 4) ASSERT_EQ(got.logprobs, want.logprobs) << ToString(tid);
    for (size_t i = 0; i < want.logprobs.size(); ++i)
      EXPECT_NEAR(got.logprobs[i], want.logprobs[i], 2e-4) << ToString(tid) << " token " << i;
    tokens += static_cast<int64_t>(want.ids.size());
  }
  EXPECT_GT(tokens, 80);
}

TEST(EngineRanksTest, InBfloat16TheyGenerateTheSameToo) {
  at::set_num_threads(1);
  const model::ModelSpec spec = CutSpec(true);
  const auto whole = PlayWhole(spec, DType::kBFloat16), cut = PlayCut(spec, DType::kBFloat16, 2, true);
  ASSERT_EQ(cut.size(), whole.size());
  for (const auto& [tid, want] : whole) {
    ASSERT_EQ(cut.at(tid).ids, want.ids) << ToString(tid);
    ASSERT_EQ(cut.at(tid).logprobs, want.logprobs) << ToString(tid);
  }
}

// The others are asked where they wait for orders, whichever of them heard of its grant first.
TEST(EngineRanksTest, KeysAndValuesAreKeptWhereAllHaveThem) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  const std::vector<std::vector<bool>> kept = {
      {true, true, true}, {true, false, true}, {false, true, true}, {true, true, true}};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = comm::MakeGroup(
          {.rendezvous = rendezvous, .rank = rank, .size = 3, .shared_folder = ::testing::TempDir()});
      ASSERT_TRUE(group.ok()) << group.status().message();
      train::PartRanks peers(**group);
      Ranks ranks(**group, peers);
      for (const std::vector<bool>& of : kept) {
        const bool mine = of[static_cast<size_t>(rank)];
        if (rank == 0) {
          EXPECT_EQ(ranks.AllKept(mine, 30), std::ranges::find(of, false) == of.end());
          continue;
        }
        std::optional<Order> order;
        while (!order) order = ranks.Next(milliseconds(20));
        EXPECT_EQ(order->kind, Order::kKept);
        ranks.AnswerKept(mine, 30);
      }
    });
  }
}

TEST(EngineRanksTest, WhoIsNotThereIsNotWaitedForLongerThanAGrantMayTake) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  const auto group = [&](int rank) {
    auto made = comm::MakeGroup(
        {.rendezvous = rendezvous, .rank = rank, .size = 2, .shared_folder = ::testing::TempDir()});
    TP_CHECK(made.ok()) << made.status().message();
    return std::move(made).value();
  };
  std::unique_ptr<comm::Collective> idle;
  std::jthread other([&] { idle = group(1); });
  auto mine = group(0);
  other.join();
  train::PartRanks peers(*mine);
  Ranks ranks(*mine, peers);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW((void)ranks.AllKept(true, 0.3), model::PeersFailed);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "the group has 60 s";
}

// Whoever leads learns that the others are of no use any more: its requests are not at fault.
TEST(EngineRanksTest, ARankThatIsLostEndsTheEngineAndNoRequest) {
  at::set_num_threads(1);
  const model::ModelSpec spec = CutSpec(true);
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  const auto group = [&](int rank) {
    auto made = comm::MakeGroup(
        {.rendezvous = rendezvous, .rank = rank, .size = 2, .shared_folder = ::testing::TempDir()});
    TP_CHECK(made.ok()) << made.status().message();
    return std::move(made).value();
  };
  std::jthread other([&] {
    at::set_num_threads(1);
    auto mine = group(1);
    train::PartRanks peers(*mine);
    Ranks ranks(*mine, peers);
    const auto weights = WeightsOf(spec, DType::kFloat32, 3);
    EngineOptions options = Options();
    options.ranks = &ranks;
    auto follower = std::move(Follower::Create(*weights, options)).value();
    for (int orders = 0; orders < 5;) {
      const auto order = ranks.Next(milliseconds(20));
      if (!order) continue;
      follower->Do(*order);
      ++orders;
    }
  });
  auto mine = group(0);
  train::PartRanks peers(*mine);
  Ranks ranks(*mine, peers);
  const auto weights = WeightsOf(spec, DType::kFloat32, 3);
  EngineOptions options = Options();
  options.ranks = &ranks;
  auto engine = std::move(Engine::Create(*weights, options)).value();
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 0},
                         .gid = GroupId{1},
                         .prompt = {1, 2, 3},
                         .max_new_tokens = 60,
                         .max_total_new = 60})
                  .ok());
  EXPECT_THROW(
      {
        for (int i = 0; i < 60; ++i) {
          for (const Delta& d : engine->Step().deltas) EXPECT_NE(d.finish, FinishReason::kError) << d.error;
        }
      },
      model::PeersFailed);
}

}  // namespace
}  // namespace tidepool::engine
