#include "core/engine/engine.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/rng.h"
#include "core/model/graph_rows.h"
#include "tests/core/device/checked_device.h"
#include "tests/core/device/failing_device.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

using testing::HasSubstr;

class EngineTest : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // tiny products: a second thread only spins
  static std::vector<int32_t> Prompt(int32_t n, int32_t from = 0) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = (from + 7 * i) % 90;
    return v;
  }
  std::unique_ptr<Engine> Make(EngineOptions options) {
    options.seed = 5;
    options.device = model::AnyDevice();
    if (!options.version.valid()) options.version = {0, 3};
    auto engine = Engine::Create(*weights_, options);
    TP_CHECK(engine.ok()) << engine.status().ToString();
    return std::move(engine).value();
  }
  // Steps until every request has ended; the deltas of a sample are joined.
  static std::map<SampleId, Delta> Finish(Engine& engine) {
    std::map<SampleId, Delta> joined;
    for (int i = 0; engine.HasWork() && i < 1000; ++i) {
      for (const Delta& d : engine.Step().deltas) {
        auto [it, fresh] = joined.emplace(d.tid, d);
        if (fresh) continue;
        Delta& all = it->second;
        all.ids.insert(all.ids.end(), d.ids.begin(), d.ids.end());
        all.logprobs.insert(all.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
        all.log_kept.insert(all.log_kept.end(), d.log_kept.begin(), d.log_kept.end());
        all.finish = d.finish;
        all.error = d.error;
      }
    }
    return joined;
  }

  // Longest run without the end token is wanted here; tests that need it set it.
  std::unique_ptr<model::Weights> weights_ = TinyModel(model::DType::kFloat32, 3);
};

TEST_F(EngineTest, APromptOfAGroupIsComputedOnceAlsoForLaterSiblings) {
  auto engine = Make({.kv_cache_tokens = 1024});
  for (int32_t k = 0; k < 4; ++k) {
    ASSERT_TRUE(engine
                    ->Add({.tid = {1, 0, k},
                           .gid = GroupId{1},
                           .prompt = Prompt(40),
                           .max_new_tokens = 20,
                           .max_total_new = 20})
                    .ok());
  }
  StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 40);
  EXPECT_EQ(out.stats.decode_tokens, 0);
  EXPECT_EQ(out.stats.sampled_tokens, 4);  // all of them from the one last row
  EXPECT_EQ(out.deltas.size(), 4U);
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 4},
                         .gid = GroupId{1},
                         .prompt = Prompt(40),
                         .max_new_tokens = 20,
                         .max_total_new = 20})
                  .ok());
  out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 0);
  EXPECT_EQ(out.stats.prefix_hit_tokens, 40);
  EXPECT_EQ(out.stats.sampled_tokens, 5);
  EXPECT_EQ(out.stats.running, 5);
}

TEST_F(EngineTest, AChunkGoesOnFromItsKvAndForgetTakesItAway) {
  auto engine = Make({.kv_cache_tokens = 1024});
  ChunkRequest request{
      .tid = {1, 0, 0}, .gid = GroupId{1}, .prompt = Prompt(20), .max_new_tokens = 3, .max_total_new = 9};
  ASSERT_TRUE(engine->Add(request).ok());
  auto got = Finish(*engine);
  ASSERT_EQ(got.begin()->second.finish, FinishReason::kChunk);
  request.generated = got.begin()->second.ids;
  ASSERT_TRUE(engine->Add(request).ok());
  EXPECT_EQ(engine->Step().stats.decode_tokens, 1);  // only the last sampled token is fed
  got = Finish(*engine);
  request.generated.clear();
  engine->ForgetGroup(request.gid);
  request.max_new_tokens = 1;
  ASSERT_TRUE(engine->Add(request).ok());
  EXPECT_EQ(engine->Step().stats.prefill_tokens, 20);
}

// A turn ends by itself, at its limit or its end token; what the environment says next is fed behind the KV
// of all before.
TEST_F(EngineTest, ATurnOfAnEpisodeGoesOnFromItsKv) {
  auto engine = Make({.kv_cache_tokens = 1024}), afresh = Make({.kv_cache_tokens = 1024});
  ChunkRequest request{.tid = {1, 0, 0},
                       .gid = GroupId{1},
                       .prompt = Prompt(21),
                       .max_new_tokens = 8,
                       .max_total_new = 3,
                       .turn = true};
  for (int turn = 0; turn < 4; ++turn) {
    ASSERT_TRUE(engine->Add(request).ok());
    const EngineStats first = engine->Step().stats;
    EXPECT_EQ(first.prefill_tokens, turn == 0 ? 21 : 6) << "turn " << turn;
    const std::vector<int32_t> others = Finish(*engine).begin()->second.ids;
    ASSERT_TRUE(afresh->Add(request).ok());
    const std::vector<int32_t> ids = Finish(*afresh).begin()->second.ids;
    afresh->ForgetGroup(request.gid);
    ASSERT_EQ(ids.size(), 3U);
    EXPECT_EQ(others, std::vector<int32_t>(ids.begin() + 1, ids.end())) << "turn " << turn;
    request.generated.insert(request.generated.end(), ids.begin(), ids.end());
    for (const int32_t said : Prompt(5, 3 * turn)) request.generated.push_back(said);
    request.max_total_new = static_cast<int64_t>(request.generated.size()) + 3;
  }
  engine->ForgetGroup(request.gid);
  request.generated.clear();
  request.max_total_new = 3;
  ASSERT_TRUE(engine->Add(request).ok());
  EXPECT_EQ(engine->Step().stats.prefill_tokens, 21) << "nothing is left of a group that is over";
}

TEST_F(EngineTest, PrefillIsCutIntoPiecesAndDecodingGoesOnBesideIt) {
  auto engine = Make({.kv_cache_tokens = 1024, .max_batched_tokens = 16, .max_running = 8});
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 0},
                         .gid = GroupId{1},
                         .prompt = Prompt(10),
                         .max_new_tokens = 50,
                         .max_total_new = 50})
                  .ok());
  EXPECT_EQ(engine->Step().stats.sampled_tokens, 1);
  ASSERT_TRUE(engine
                  ->Add({.tid = {2, 0, 0},
                         .gid = GroupId{2},
                         .prompt = Prompt(40, 1),
                         .max_new_tokens = 9,
                         .max_total_new = 9})
                  .ok());
  for (const int64_t piece : {15, 15, 10}) {
    const StepOutput out = engine->Step();
    EXPECT_EQ(out.stats.prefill_tokens, piece);
    EXPECT_EQ(out.stats.decode_tokens, 1);
  }
  EXPECT_EQ(engine->Step().stats.decode_tokens, 2);
}

TEST_F(EngineTest, RequestsWaitUntilTheirChunkFitsAndNothingIsPreempted) {
  auto engine = Make({.kv_cache_tokens = 64});
  for (int32_t k = 0; k < 3; ++k) {  // 2 of 3 fit: 10 + 16 - 1 tokens are 2 blocks of 4
    ASSERT_TRUE(engine
                    ->Add({.tid = {k, 0, 0},
                           .gid = GroupId{k},
                           .prompt = Prompt(10, k),
                           .max_new_tokens = 16,
                           .max_total_new = 16})
                    .ok());
  }
  const StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.running, 2);
  EXPECT_EQ(out.stats.waiting, 1);
  EXPECT_DOUBLE_EQ(out.stats.kv_usage, 1.0);
  const auto got = Finish(*engine);
  EXPECT_EQ(got.size(), 3U);
}

TEST_F(EngineTest, WhatCanNeverRunIsRefusedWithTheNumbers) {
  auto engine = Make({.kv_cache_tokens = 64});
  const auto refused = [&](ChunkRequest r, StatusCode code, const std::string& part) {
    r.gid = GroupId{1};
    const Status status = engine->Add(std::move(r));
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  refused({.tid = {1, 0, 0}, .prompt = Prompt(40), .max_new_tokens = 40, .max_total_new = 40},
          StatusCode::kResourceExhausted, "needs 5 KV blocks");
  refused({.tid = {1, 0, 0}, .prompt = Prompt(40), .max_new_tokens = 300, .max_total_new = 300},
          StatusCode::kInvalidArgument, "256 positions");
  refused({.tid = {1, 0, 0}, .prompt = {}, .max_new_tokens = 1, .max_total_new = 1},
          StatusCode::kInvalidArgument, "prompt is empty");
  refused({.tid = {1, 0, 0}, .prompt = {97}, .max_new_tokens = 1, .max_total_new = 1},
          StatusCode::kInvalidArgument, "token id 97");
  refused({.tid = {1, 0, 0}, .prompt = {-1}, .max_new_tokens = 1, .max_total_new = 1},
          StatusCode::kInvalidArgument, "token id -1");
  refused({.tid = {1, 0, 0}, .prompt = {1}, .generated = {2}, .max_new_tokens = 1, .max_total_new = 1},
          StatusCode::kInvalidArgument, "room");
  refused(
      {.tid = {1, 0, 0}, .prompt = {1}, .max_new_tokens = 1, .max_total_new = 1, .sampling = {.top_p = 2}},
      StatusCode::kInvalidArgument, "top_p");
  refused({.tid = {1, 0, 0},
           .prompt = {1},
           .max_new_tokens = 1,
           .max_total_new = 1,
           .sampling = {.stop_strings = {"x"}}},
          StatusCode::kInvalidArgument, "detokenizer");
  ASSERT_TRUE(
      engine
          ->Add({.tid = {1, 0, 0}, .gid = GroupId{1}, .prompt = {1}, .max_new_tokens = 1, .max_total_new = 1})
          .ok());
  refused({.tid = {1, 0, 0}, .prompt = {1}, .max_new_tokens = 1, .max_total_new = 1},
          StatusCode::kAlreadyExists, "1.0.0");
  EXPECT_FALSE(Engine::Create(*weights_, {.kv_cache_tokens = 3}).ok());
  EXPECT_FALSE(Engine::Create(*weights_, {.kv_cache_tokens = 100, .max_batched_tokens = 5}).ok());
}

TEST_F(EngineTest, SamplesEndForTheRightReason) {
  auto engine = Make({.kv_cache_tokens = 4096, .token_bytes = [](int32_t id) {
                        return std::string(1, static_cast<char>('!' + id % 90));
                      }});
  const SampleId tid{4, 0, 0};
  const auto run = [&](SamplingParams sampling, int64_t total) {
    TP_CHECK(engine
                 ->Add({.tid = tid,
                        .gid = GroupId{4},
                        .prompt = Prompt(9),
                        .max_new_tokens = total,
                        .max_total_new = total,
                        .sampling = std::move(sampling)})
                 .ok());
    return Finish(*engine).at(tid);
  };
  const Delta full = run({}, 60);
  ASSERT_EQ(full.finish == FinishReason::kLength || full.finish == FinishReason::kEos, true);
  ASSERT_GT(full.ids.size(), 6U);
  EXPECT_EQ(run({}, 3).finish, FinishReason::kLength);

  const auto first = [&](int32_t id) {
    return std::find(full.ids.begin(), full.ids.end(), id) - full.ids.begin();
  };
  Delta cut = run({.stop_token_ids = {full.ids[4]}}, 60);
  EXPECT_EQ(cut.finish, FinishReason::kStopToken);
  EXPECT_EQ(static_cast<int64_t>(cut.ids.size()), first(full.ids[4]) + 1);

  std::string text;
  for (size_t i = 3; i < 6; ++i) text += static_cast<char>('!' + full.ids[i] % 90);
  cut = run({.stop_strings = {"not there", text}}, 60);
  EXPECT_EQ(cut.finish, FinishReason::kStopString);
  EXPECT_LE(cut.ids.size(), 6U);
  EXPECT_EQ(cut.ids,
            std::vector<int32_t>(full.ids.begin(), full.ids.begin() + static_cast<int64_t>(cut.ids.size())));

  // An end token of the model: find a sample that meets one.
  bool seen = false;
  for (int32_t k = 0; k < 40 && !seen; ++k) {
    ASSERT_TRUE(engine
                    ->Add({.tid = {5, 0, k},
                           .gid = GroupId{5},
                           .prompt = Prompt(9),
                           .max_new_tokens = 100,
                           .max_total_new = 100,
                           .sampling = {.temperature = 4}})
                    .ok());
    const Delta d = Finish(*engine).at({5, 0, k});
    if (d.finish != FinishReason::kEos) continue;
    seen = true;
    EXPECT_EQ(d.ids.back(), 96);
    EXPECT_EQ(std::count(d.ids.begin(), d.ids.end(), 96), 1);
  }
  EXPECT_TRUE(seen);
}

TEST_F(EngineTest, CancellingALeaderLeavesItsSiblingsWhole) {
  auto engine = Make({.kv_cache_tokens = 1024, .max_batched_tokens = 16, .max_running = 8});
  for (int32_t k = 0; k < 3; ++k) {
    ASSERT_TRUE(engine
                    ->Add({.tid = {1, 0, k},
                           .gid = GroupId{1},
                           .prompt = Prompt(40),
                           .max_new_tokens = 8,
                           .max_total_new = 8})
                    .ok());
  }
  engine->Step();
  EXPECT_TRUE(engine->Cancel({1, 0, 0}, 0));
  EXPECT_FALSE(engine->Cancel({1, 0, 0}, 0));
  auto got = Finish(*engine);
  ASSERT_EQ(got.size(), 2U);
  for (auto& [tid, delta] : got)
    EXPECT_EQ(delta.ids, ReferenceGenerate(*weights_, 5, tid, Prompt(40), 8, {}).ids);
}

TEST_F(EngineTest, DrainEndsEverythingAndTheWorkGoesOnElsewhere) {
  auto engine = Make({.kv_cache_tokens = 128, .max_running = 2});
  for (int32_t k = 0; k < 3; ++k) {
    ASSERT_TRUE(engine
                    ->Add({.tid = {k, 0, 0},
                           .gid = GroupId{k},
                           .prompt = Prompt(20, k),
                           .max_new_tokens = 10,
                           .max_total_new = 10})
                    .ok());
  }
  std::map<SampleId, std::vector<int32_t>> generated;
  for (int i = 0; i < 3; ++i) {
    for (const Delta& d : engine->Step().deltas)
      generated[d.tid].insert(generated[d.tid].end(), d.ids.begin(), d.ids.end());
  }
  const auto drained = engine->Drain();
  EXPECT_EQ(drained.size(), 3U);
  for (const Delta& d : drained) EXPECT_TRUE(d.finish == FinishReason::kCancelled && d.ids.empty());
  EXPECT_FALSE(engine->HasWork());
  auto other = Make({.kv_cache_tokens = 256});
  for (int32_t k = 0; k < 3; ++k) {
    ASSERT_TRUE(other
                    ->Add({.tid = {k, 0, 0},
                           .gid = GroupId{k},
                           .prompt = Prompt(20, k),
                           .generated = generated[{k, 0, 0}],
                           .max_new_tokens = 10,
                           .max_total_new = 10})
                    .ok());
  }
  for (auto& [tid, delta] : Finish(*other)) {
    auto all = generated[tid];
    all.insert(all.end(), delta.ids.begin(), delta.ids.end());
    EXPECT_EQ(
        all, ReferenceGenerate(*weights_, 5, tid, Prompt(20, static_cast<int32_t>(tid.ordinal)), 10, {}).ids);
  }
}

TEST_F(EngineTest, TokensAfterANewVersionAreThoseOfACleanForwardOfIt) {
  auto engine = Make({.kv_cache_tokens = 1024});
  const SampleId tid{1, 0, 0};
  ASSERT_TRUE(engine
                  ->Add({.tid = tid,
                         .gid = GroupId{1},
                         .prompt = Prompt(20),
                         .max_new_tokens = 12,
                         .max_total_new = 12})
                  .ok());
  std::vector<int32_t> before;
  for (int i = 0; i < 4; ++i) {
    for (const Delta& d : engine->Step().deltas) {
      EXPECT_EQ(d.version, (Version{0, 3}));
      before.insert(before.end(), d.ids.begin(), d.ids.end());
    }
  }
  weights_->Initialize(99, 0.15);  // in place
  engine->SetVersion({0, 4});
  std::vector<int32_t> after;
  std::vector<float> logprobs;
  while (engine->HasWork()) {
    for (const Delta& d : engine->Step().deltas) {
      EXPECT_EQ(d.version, (Version{0, 4}));
      after.insert(after.end(), d.ids.begin(), d.ids.end());
      logprobs.insert(logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    }
  }
  std::vector<int32_t> prefix = Prompt(20);
  prefix.insert(prefix.end(), before.begin(), before.end());
  const Record want = ReferenceGenerate(*weights_, 5, tid, prefix, 8, {});
  EXPECT_EQ(after, want.ids);
  EXPECT_EQ(logprobs, want.logprobs);
}

TEST_F(EngineTest, ReleasedMemoryIsReportedAndWorkWaitsForIt) {
  auto engine = Make({.kv_cache_tokens = 1024});
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 0},
                         .gid = GroupId{1},
                         .prompt = Prompt(20),
                         .max_new_tokens = 5,
                         .max_total_new = 5})
                  .ok());
  engine->Step();
  const int64_t workspace = engine->held().workspace;
  const int64_t slots = 1024 + (model::AnyDevice()->has_graphs() ? model::kFillRowsMax : 0);
  EXPECT_EQ(engine->held().kv, 2 * 2 * slots * 2 * 16 * 4);
  EXPECT_GT(workspace, 0);
  EXPECT_EQ(engine->ReleaseMemory(), 2 * 2 * slots * 2 * 16 * 4 + workspace);
  EXPECT_EQ(engine->held().total(), 0);
  EXPECT_FALSE(engine->HasWork());
  EXPECT_TRUE(engine->Step().deltas.empty());
  ASSERT_TRUE(engine->AcquireMemory().ok());
  const auto got = Finish(*engine);
  EXPECT_EQ(got.at({1, 0, 0}).finish, FinishReason::kLength);
}

// Keeping KV over a change of weights: what runs or waits between two chunks goes on without computing
// anything again; what is new sees clean KV of the new weights.
TEST_F(EngineTest, KeptKvServesItsOwnSampleAlone) {
  auto engine = Make({.block_tokens = 4, .kv_cache_tokens = 1024});
  const SampleId between{1, 0, 0}, running{1, 0, 1}, fresh{1, 0, 2};
  const auto add = [&](const SampleId& tid, std::vector<int32_t> generated, int64_t chunk) {
    return engine
        ->Add({.tid = tid,
               .gid = GroupId{1},
               .prompt = Prompt(21),
               .generated = std::move(generated),
               .max_new_tokens = chunk,
               .max_total_new = 12})
        .ok();
  };
  ASSERT_TRUE(add(between, {}, 4));
  ASSERT_TRUE(add(running, {}, 12));
  std::map<SampleId, std::vector<int32_t>> ids;
  for (int i = 0; i < 5; ++i) {
    for (const Delta& d : engine->Step().deltas)
      ids[d.tid].insert(ids[d.tid].end(), d.ids.begin(), d.ids.end());
  }
  ASSERT_EQ(ids[between].size(), 4U);
  ASSERT_EQ(ids[running].size(), 5U);
  weights_->Initialize(99, 0.15);  // in place
  engine->SetVersion({0, 4}, KvOnUpdate::kKeep);
  ASSERT_TRUE(add(between, ids[between], 3));
  StepOutput out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 0);
  EXPECT_EQ(out.stats.decode_tokens, 2);
  for (const Delta& d : out.deltas) EXPECT_EQ(d.version, (Version{0, 4}));
  ASSERT_TRUE(add(fresh, {}, 12));
  std::map<SampleId, std::vector<int32_t>> second;
  const StepOutput third = engine->Step();
  EXPECT_EQ(third.stats.prefill_tokens, 21);  // the old prompt's KV is not lent
  for (const Delta& d : third.deltas) second[d.tid].insert(second[d.tid].end(), d.ids.begin(), d.ids.end());
  for (const auto& [tid, d] : Finish(*engine))
    second[tid].insert(second[tid].end(), d.ids.begin(), d.ids.end());
  std::vector<int32_t> all = ids[between];
  for (const Delta& d : out.deltas) {
    if (d.tid == between) all.insert(all.end(), d.ids.begin(), d.ids.end());
  }
  for (const int32_t id : second.at(between)) all.push_back(id);
  ASSERT_EQ(all.size(), 7U);
  ASSERT_TRUE(add(between, all, 2));
  out = engine->Step();
  EXPECT_EQ(out.stats.prefill_tokens, 0);
  EXPECT_EQ(out.stats.decode_tokens, 1);
  (void)Finish(*engine);
  ASSERT_TRUE(add({9, 0, 0}, {}, 12));
  EXPECT_EQ(Finish(*engine).at({9, 0, 0}).ids,
            ReferenceGenerate(*weights_, 5, {9, 0, 0}, Prompt(21), 12, {}).ids);
}

TEST_F(EngineTest, KeptKvGivesWayWhereRoomIsNeeded) {
  auto engine = Make({.block_tokens = 4, .kv_cache_tokens = 64});
  for (int32_t k = 0; k < 2; ++k) {
    ASSERT_TRUE(engine
                    ->Add({.tid = {k, 0, 0},
                           .gid = GroupId{k},
                           .prompt = Prompt(16, k),
                           .max_new_tokens = 4,
                           .max_total_new = 12})
                    .ok());
  }
  (void)Finish(*engine);
  engine->SetVersion({0, 4}, KvOnUpdate::kKeep);
  ASSERT_TRUE(engine
                  ->Add({.tid = {7, 0, 0},
                         .gid = GroupId{7},
                         .prompt = Prompt(50, 3),
                         .max_new_tokens = 12,
                         .max_total_new = 12})
                  .ok());
  EXPECT_EQ(Finish(*engine).at({7, 0, 0}).ids,
            ReferenceGenerate(*weights_, 5, {7, 0, 0}, Prompt(50, 3), 12, {}).ids);
}

// Ended samples would be replaced by others, which the same device would end, too.
TEST_F(EngineTest, AFailureOfTheMachineIsNoFaultOfTheRequests) {
  const auto begins = [&](const auto& device) {
    auto engine = Engine::Create(*weights_, {.device = device, .kv_cache_tokens = 1024, .version = {0, 3}});
    TP_CHECK(engine.ok()) << engine.status().ToString();
    const Status added = (*engine)->Add(
        {.tid = {1, 0, 0}, .gid = GroupId{1}, .prompt = Prompt(10), .max_new_tokens = 4, .max_total_new = 4});
    TP_CHECK(added.ok()) << added.ToString();
    return std::move(engine).value();
  };
  const auto gpu = std::make_shared<device::FailingDevice<device::CheckedDevice>>();
  auto engine = begins(gpu);
  gpu->fail = device::ThrowAsLibTorchDoes;
  EXPECT_THROW((void)engine->Step(), c10::Error);

  const auto cpu = std::make_shared<device::FailingDevice<device::CpuDevice>>();
  engine = begins(cpu);
  cpu->fail = [] { throw std::bad_alloc(); };
  EXPECT_THROW((void)engine->Step(), c10::OutOfMemoryError);
  cpu->fail = [] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  EXPECT_THROW((void)engine->Step(), std::system_error);
  // Tensor math of the CPU fails by what it is given.
  cpu->fail = device::ThrowAsLibTorchDoes;
  const StepOutput out = engine->Step();
  ASSERT_EQ(out.deltas.size(), 1U);
  EXPECT_EQ(out.deltas[0].finish, FinishReason::kError);
  EXPECT_THAT(out.deltas[0].error, HasSubstr("illegal memory access"));
}

// The worker's door says what was planned, and which key makes it less.
TEST_F(EngineTest, NoMemoryForTheDecoderGoesOnToTheDoor) {
  const auto gpu = std::make_shared<device::FailingDevice<device::CheckedDevice>>();
  gpu->fail = [] { throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no memory"); };
  EXPECT_THROW((void)Engine::Create(*weights_, {.device = gpu, .kv_cache_tokens = 1024}),
               c10::OutOfMemoryError);
}

TEST_F(EngineTest, DivergedWeightsEndTheSampleWithAnErrorAndTheEngineGoesOn) {
  auto engine = Make({.kv_cache_tokens = 1024});
  const std::vector<std::byte> good(weights_->bytes().begin(), weights_->bytes().end());
  auto* values = reinterpret_cast<float*>(weights_->bytes().data());
  std::fill(values, values + weights_->elements(), std::numeric_limits<float>::quiet_NaN());
  engine->SetVersion({0, 4});
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 0},
                         .gid = GroupId{1},
                         .prompt = Prompt(20),
                         .max_new_tokens = 5,
                         .max_total_new = 5})
                  .ok());
  Delta d = Finish(*engine).at({1, 0, 0});
  EXPECT_EQ(d.finish, FinishReason::kError);
  EXPECT_THAT(d.error, HasSubstr("not finite"));
  EXPECT_TRUE(d.ids.empty());
  std::copy(good.begin(), good.end(), weights_->bytes().begin());
  engine->SetVersion({0, 5});
  ASSERT_TRUE(engine
                  ->Add({.tid = {1, 0, 0},
                         .attempt = 1,
                         .gid = GroupId{1},
                         .prompt = Prompt(20),
                         .max_new_tokens = 5,
                         .max_total_new = 5})
                  .ok());
  EXPECT_EQ(Finish(*engine).at({1, 0, 0}).ids,
            ReferenceGenerate(*weights_, 5, {1, 0, 0}, Prompt(20), 5, {}).ids);
}

}  // namespace
}  // namespace tidepool::engine
