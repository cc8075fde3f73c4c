// Rehearsals: virtual time, the real controller.

#include "scheduler/simulator/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/base/rng.h"
#include "scheduler/simulator/engine_model.h"
#include "tests/scheduler/rehearsal.h"

namespace tidepool::scheduler {
namespace {

SimReport Rehearse(const SimJob& j) {
  Simulator s(j);
  auto r = s.Run();
  EXPECT_TRUE(r.ok()) << r.status().message();
  EXPECT_TRUE(r->done) << r->why;
  EXPECT_EQ(r->violation, "");
  return std::move(r).value();
}

TEST(SimulatorTest, EveryPlacementTrainsAllStepsAndItsJournalHolds) {
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    SCOPED_TRACE(Name(placement));
    const SimReport r = Rehearse(Rehearsal(placement, 4));
    EXPECT_EQ(r.steps, 4);
    EXPECT_GT(r.tokens_per_s, 0);
  }
}

TEST(SimulatorTest, EpisodesArePlayedByEnvironmentWorkersAndLatencyCosts) {
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    SCOPED_TRACE(Name(placement));
    SimJob j = Rehearsal(placement, 4);
    j.controller.environment.used = true;
    j.controller.environment.workers = 3;
    j.controller.environment.max_turn_tokens = 200;
    j.turns.mean_turns = 6;
    j.turns.sigma_turns = 0.5;
    const SimReport calm = Rehearse(j);
    EXPECT_EQ(calm.steps, 4);
    j.turns.latency_median_s = 5;
    j.turns.latency_tail = 1;
    j.turns.latency_max_s = 40;
    const SimReport slow = Rehearse(j);
    EXPECT_EQ(slow.steps, 4);
    EXPECT_GT(slow.seconds, calm.seconds + 4 * 5) << "every step has a turn to wait for";
    EXPECT_EQ(slow.dropped, slow.stale) << "nothing is lost but to age";
  }
}

// Long answers are what passes the bound on staleness. Where nothing waited for them, half of the longest
// were dropped.
TEST(SimulatorTest, AHeavyTailAtALagOfOneIsTrainedAsWell) {
  for (const PlacementKind placement : {PlacementKind::kColocated, PlacementKind::kMultiplexed}) {
    SCOPED_TRACE(Name(placement));
    SimJob j = Rehearsal(placement, 16);
    j.lengths = {3000, 0.8, 0.4};
    ControllerOptions& c = j.controller;
    c.batch.max_lag_versions = 1;
    c.batch.groups_per_step = 64;
    c.steps = 14;
    c.batch.group_size = 8;
    c.rollout.max_new_tokens = 16384;
    c.rollout.chunk_tokens = 1024;
    const SimReport r = Rehearse(j);  // Q10 is checked there
    EXPECT_LT(r.stale, 14 * 64 * 8 / 5);
  }
}

// When a batch is complete few samples are left in the engines; the rate at that moment once made every
// number of training slots look the same, and one slot trained while fifteen waited for it.
TEST(SimulatorTest, ElasticGivesALongOptimizerStepTheSlotsThatItNeeds) {
  // heavy_tail: lengths of which little is known, which once passed for the limit and hid what training
  // costs.
  const auto rehearse = [](PlacementKind placement, int64_t actors, bool heavy_tail) {
    SimJob j = Rehearsal(placement, 16);
    j.train_efficiency = 0.02;
    if (heavy_tail) {
      j.lengths = {3000, 0.8, 0.4};
      j.controller.rollout.max_new_tokens = 16384;
    }
    j.controller.fleet.actor_slots = actors;
    j.controller.batch.max_lag_versions = 1;
    j.controller.batch.groups_per_step = 16;
    j.controller.steps = 12;
    return Rehearse(j);
  };
  for (const bool heavy_tail : {false, true}) {
    const double fixed = rehearse(PlacementKind::kMultiplexed, 8, heavy_tail).step_s;
    EXPECT_LT(rehearse(PlacementKind::kElastic, 1, heavy_tail).step_s, 1.3 * fixed) << heavy_tail;
  }
}

// Episodes whose environments take their time, a lag of one, and slots need a twentieth of a step to find
// each other: what elastic does by itself comes within 2 % of the best of three numbers of training slots,
// trials and all.
TEST(SimulatorTest, ElasticIsAsGoodAsTheBestNumberOfTrainingSlots) {
  const auto rehearse = [](PlacementKind placement, int64_t actors) {
    SimJob j = Rehearsal(placement, 16);
    j.group_s = 4;
    j.lengths = {3000, 0.5, 0.4};
    j.turns.latency_median_s = 0.75;
    j.turns.latency_tail = 1.3;
    j.turns.latency_max_s = 75;
    j.turns.max_turns = 16;
    ControllerOptions& c = j.controller;
    c.environment.used = true;
    c.environment.max_turn_tokens = 400;
    c.environment.step_timeout_s = 1000;
    c.fleet.actor_slots = actors;
    c.batch.max_lag_versions = 1;
    c.batch.groups_per_step = 32;
    c.batch.group_size = 4;
    c.rollout.max_new_tokens = 8192;
    c.rollout.chunk_tokens = 512;
    c.steps = 40;
    return Rehearse(j).samples_per_s;
  };
  double best = 0;
  for (const int64_t actors : {8, 12, 14})
    best = std::max(best, rehearse(PlacementKind::kMultiplexed, actors));
  EXPECT_GE(rehearse(PlacementKind::kElastic, 1) / best, 0.98);
}

TEST(SimulatorTest, JumpsAgreeWithAnEventForEveryStep) {
  SimJob j = Rehearsal(PlacementKind::kMultiplexed, 4);
  const SimReport jumps = Rehearse(j);
  j.per_step = true;
  const SimReport steps = Rehearse(j);
  EXPECT_GT(steps.events + 0.0, 0);
  EXPECT_NEAR(jumps.seconds, steps.seconds, 0.005 * steps.seconds);
  EXPECT_NEAR(jumps.tokens_per_s, steps.tokens_per_s, 0.005 * steps.tokens_per_s);
}

TEST(SimulatorTest, OneSeedGivesOneLog) {
  const SimReport a = Rehearse(Rehearsal(PlacementKind::kElastic, 4)),
                  b = Rehearse(Rehearsal(PlacementKind::kElastic, 4));
  EXPECT_EQ(a.log_hash, b.log_hash);
  SimJob other = Rehearsal(PlacementKind::kElastic, 4);
  other.seed = 2;
  EXPECT_NE(Rehearse(other).log_hash, a.log_hash);
}

// Equal slots end together, and a job of equal answers then falls into a rhythm that real slots do not keep.
TEST(SimulatorTest, UnequalSlotsCostWhatWaitingForTheSlowerOneCosts) {
  for (const PlacementKind placement : {PlacementKind::kColocated, PlacementKind::kMultiplexed}) {
    SCOPED_TRACE(Name(placement));
    SimJob j = Rehearsal(placement, 4);
    j.controller.steps = 12;
    const SimReport even = Rehearse(j);
    j.jitter = 0.3;
    const SimReport uneven = Rehearse(j);
    EXPECT_GT(uneven.seconds, 1.03 * even.seconds);
    EXPECT_LT(uneven.seconds, 1.6 * even.seconds);
    EXPECT_EQ(Rehearse(j).log_hash, uneven.log_hash);
  }
}

// A slot that gives its memory away for a training step comes back without caches, also where they would
// outlive new weights.
TEST(SimulatorTest, CachesEndWithTheRoleThatTheyWereFor) {
  SimJob j = Rehearsal(PlacementKind::kColocated, 2);
  j.controller.batch.max_lag_versions = 1;
  j.controller.rollout.kv_on_update = KvOnUpdate::kKeep;
  j.controller.steps = 8;
  j.jitter = 0.2;
  EXPECT_GT(Rehearse(j).prefilled_again, 0);
  j.controller.fleet.placement = PlacementKind::kSplit;
  EXPECT_EQ(Rehearse(j).prefilled_again, 0);
}

// An engine that fills the caches of moved samples is not a slow one. When it was taken for one it lost all
// of its own, and the engines that got those were the next slow ones: more was computed again than was
// generated.
TEST(SimulatorTest, MovedSamplesDoNotMakeTheNextEngineSlow) {
  SimJob j = Rehearsal(PlacementKind::kColocated, 8);
  j.model = {"long", 1e12, 3.2e10, 61, 64, 64, 128, 1, 2, 70272};
  j.devices_per_slot = 32;
  j.lengths = {39000, 1, 0.35};
  j.controller.batch.groups_per_step = 400;
  j.controller.steps = 1;
  j.controller.batch.group_size = 8;
  j.controller.rollout.max_new_tokens = 98304;
  j.controller.rollout.chunk_tokens = 2048;
  const SimReport r = Rehearse(j);
  EXPECT_LT(r.prefilled_again, 0.35 * r.tokens);
}

// Split, one trainer: what a reference says of a batch is known when its last group is there, but for that
// group.
TEST(SimulatorTest, AReferenceIsHeardWhileTheBatchIsGenerated) {
  SimJob j = Rehearsal(PlacementKind::kSplit, 4);
  j.controller.fleet.actor_slots = 1;
  j.train_efficiency = 0.1;
  const double alone = Rehearse(j).step_s;
  j.further_models = 2;
  const double late = Rehearse(j).step_s;
  j.controller.batch.early_columns = true;
  const double early = Rehearse(j).step_s;
  EXPECT_GT(late, 1.05 * alone);
  EXPECT_LT(early, alone + 0.3 * (late - alone));
}

TEST(SimulatorTest, NoPolicyBeatsTheWorkOrTheLongestSample) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SimJob j = Rehearsal(seed % 2 == 0 ? PlacementKind::kSplit : PlacementKind::kMultiplexed, 3);
    j.seed = seed;
    j.controller.steps = 2;
    const SimReport r = Rehearse(j);
    const CostModel cost(j.hardware, j.model, 1, j.engine_efficiency);
    // Decoding alone, at the best rate of a slot: reading weights once for as many samples as there are.
    const double best = cost.DecodeSteps(32, 0, 1) / 32;
    EXPECT_GE(r.seconds * 3, r.tokens * best * 0.999) << "seed " << seed;
    Simulator lengths(j);
    int64_t longest = 0;
    for (int64_t g = 0; g < 8; ++g) {
      for (int32_t k = 0; k < 4; ++k) longest = std::max(longest, lengths.LengthOf({g, 0, k}));
    }
    EXPECT_GE(r.seconds, cost.DecodeSteps(1, 0, longest)) << "seed " << seed;
  }
}

// ROLL: 160 devices, 128 of which train, against 32 for generation alone. Where throughput grows with the
// devices, all of them for a share f of the time give R = 1 + 4 f times as many tokens; f of about 0.62 gives
// the published 3.5. (Slots of eight devices: 20, 16 and 4.)
TEST(SimulatorTest, MultiplexedGainsWhatLinearScalingAllows) {
  const auto rehearse = [&](PlacementKind placement) {
    SimJob j = Rehearsal(placement, 20);
    // Decoding is bound by reading caches, of which every slot reads its own samples'; all else costs
    // nothing.
    j.model = {"m", 1e6, 1e6, 32, 32, 8, 128};
    j.model.kv_bytes_per_token = 1e6;
    j.hardware.bytes_per_s = 3e11;
    j.hardware.link_bytes_per_s = j.hardware.host_bytes_per_s = 1e18;
    j.hardware.step_overhead_s = 0;
    j.train_efficiency = 1e-3;
    j.message_s = j.reward_s = j.release_s = j.grant_s = j.publish_s = 1e-6;
    j.prompt_tokens = 1;
    j.lengths = {800, 0.3, 0.1};
    ControllerOptions& c = j.controller;
    c.batch.max_lag_versions = 3;
    c.fleet.actor_slots = 16;
    c.batch.groups_per_step = 160;
    c.steps = 12;
    c.rollout.chunk_tokens = 16;
    c.rollout.kv_on_update = KvOnUpdate::kKeep;
    return Rehearse(j);
  };
  const SimReport split = rehearse(PlacementKind::kSplit),
                  multiplexed = rehearse(PlacementKind::kMultiplexed);
  double expanded = 0, held = 0;
  for (const SimReport::Step& step : multiplexed.per_step) {
    expanded += step.time.rollout.held;
    held += step.time.rollout.held + step.time.actor.held;
  }
  const double f = (expanded / held - 0.2) / 0.8;  // of all slot-seconds 4 / 20 generate anyway
  const double r =
      multiplexed.tokens_per_s / split.tokens_per_s;  // tokens, those of samples that are dropped later, too
  std::printf("all generate for %.2f of the time: %.2f times the tokens of split, 1 + 4 f = %.2f\n", f, r,
              1 + 4 * f);
  EXPECT_LE(r, 1.02 * (1 + 4 * f));  // the slots of split are idle for a hundredth of the time
  EXPECT_GE(r, 0.9 * (1 + 4 * f));
  EXPECT_GT(r, 3.2);
}

// ROLL Flash: N samples a step on K workers, one at a time each, mean generation mu_gen, longest L_gen,
// training mu_tr a sample, E epochs, (alpha + 1) N samples in flight:  T <= (N/K)(mu_gen + E mu_tr) + L_gen /
// (alpha + 1), a step, on average. Nothing else costs anything there, so nothing else does here: messages,
// moves, weights and a second prefill take no time.
TEST(SimulatorTest, AsynchronousTrainingStaysUnderItsBound) {
  std::map<PlacementKind, double> synchronous;
  for (const int64_t alpha : {0, 1, 3}) {
    for (const PlacementKind placement : {PlacementKind::kColocated, PlacementKind::kMultiplexed}) {
      SCOPED_TRACE(testing::Message() << Name(placement) << " alpha " << alpha);
      const int64_t workers = 8, samples = 64, steps = 24;
      SimJob j = Rehearsal(placement, workers);
      j.train_efficiency = 0.02;  // so that training counts as well
      j.hardware.link_bytes_per_s = j.hardware.host_bytes_per_s = 1e18;
      j.message_s = j.reward_s = j.release_s = j.grant_s = j.publish_s = 1e-6;
      j.prompt_tokens = 1;
      j.lengths = {800, 0.8, 0.4};
      ControllerOptions& c = j.controller;
      c.batch.max_lag_versions = alpha;
      c.fleet.actor_slots = placement == PlacementKind::kColocated ? workers : workers - 1;
      c.batch.groups_per_step = samples;
      c.steps = steps;
      c.batch.group_size = 1;
      c.rollout.max_concurrent = workers;
      c.rollout.kv_cache_tokens =
          c.rollout.max_new_tokens * 3 / 2;  // one sample a worker, also where others train
      c.rollout.chunk_tokens = c.rollout.max_new_tokens;
      c.rollout.kv_on_update = KvOnUpdate::kKeep;
      const SimReport r = Rehearse(j);
      const CostModel cost(j.hardware, j.model, 1, j.engine_efficiency);
      const Simulator lengths(j);
      double generation = 0, longest = 0, tokens = 0, squares = 0;
      for (int64_t g = 0; g < samples * steps; ++g) {
        const int64_t length = lengths.LengthOf({g, 0, 0});
        const double t = cost.DecodeSteps(1, static_cast<double>(j.prompt_tokens), length),
                     row = static_cast<double>(length + j.prompt_tokens);
        generation += t;
        longest = std::max(longest, t);
        tokens += row;
        squares += row * row;
      }
      // (N/K) of the formula: a step's samples, by all workers together.
      const double work =
          generation / static_cast<double>(steps * workers) + cost.Train(tokens / static_cast<double>(steps),
                                                                         squares / static_cast<double>(steps),
                                                                         workers, false, j.train_efficiency);
      EXPECT_EQ(r.dropped, 0) << "each sample is generated once";
      EXPECT_LE(r.step_s, work + longest / static_cast<double>(alpha + 1));
      // And it is no slack bound that holds for anything: the work has to be done. The first step, left out
      // of the mean, does some ahead.
      EXPECT_GE(r.step_s, 0.95 * work);
      if (alpha > 0)
        EXPECT_LT(r.step_s, synchronous[placement]) << "what runs ahead fills the wait for the longest";
      else
        synchronous[placement] = r.step_s;
    }
  }
}

TEST(SimulatorTest, NothingIsLostWhateverGoesWrong) {
  FaultShape bad;
  bad.delay_spread = 0.9, bad.loss = 0.05, bad.duplicate = 0.05;
  bad.partition_mean_s = 60, bad.partition_s = 8;
  bad.kill_mean_s = 20, bad.hang_mean_s = 200, bad.restart_s = 5;
  bad.slow_share = 0.2, bad.slow_factor = 3;
  bad.disk_slow_mean_s = 100, bad.checkpoint_fails = 0.2;
  bad.stop_at_s = 60, bad.controller_kill_mean_s = 300;
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    SCOPED_TRACE(Name(placement));
    SimJob j = Rehearsal(placement, 8);
    j.controller.steps = 8;
    j.controller.checkpoint.every_steps = 2;
    j.tick_s = 1;
    j.limit_s = 1e6;
    const SimReport calm = Rehearse(j);
    j.faults = bad;
    const SimReport r = Rehearse(j);
    EXPECT_EQ(r.steps_trained, 8);
    EXPECT_EQ(r.lost_tokens, 0) << "what had arrived is not generated again";
    EXPECT_GE(r.lives, 2) << "it was stopped once";
    EXPECT_GT(r.faults, 20);
    EXPECT_GT(r.seconds, calm.seconds);
    EXPECT_EQ(Rehearse(j).log_hash, r.log_hash) << "faults come from the seed";
  }
}

// Once the batch of the next version is chosen, whoever is not in it and as old as the bound allows will
// expire: to go on with it kept engines from what can be trained (16 paced slots: a fifth of the throughput).
TEST(SimulatorTest, NothingIsGeneratedThatExpiresWithTheStepUnderWay) {
  for (const PlacementKind placement :
       {PlacementKind::kSplit, PlacementKind::kMultiplexed, PlacementKind::kElastic}) {
    SCOPED_TRACE(Name(placement));
    SimJob j = Rehearsal(placement, 8);
    j.controller.steps = 12;
    const int64_t bound = j.controller.batch.max_lag_versions = 1;
    std::map<std::pair<int64_t, int32_t>, int64_t> oldest;  // version that a group began with
    int64_t version = 0, during = 0;
    bool leased = false;
    j.on_record = [&](const JournalEntry& e) {
      if (const auto* x = std::get_if<record::Publish>(&e.record)) version = x->v.number;
      if (std::holds_alternative<record::Lease>(e.record)) leased = true;
      if (std::holds_alternative<record::StepCommit>(e.record)) leased = false;
      if (const auto* x = std::get_if<record::Start>(&e.record)) {
        const int64_t began = oldest.try_emplace({x->tid.ordinal, x->tid.issue}, x->wv.number).first->second;
        during += leased ? 1 : 0;
        if (leased) {
          EXPECT_LT(version - began, bound) << "record " << e.lsn.value;
        }
      }
    };
    const SimReport r = Rehearse(j);
    EXPECT_EQ(r.steps_trained, 12);
    EXPECT_GT(during, 100) << "the others go on";
  }
}

// After a controller's death the steps since its checkpoint are trained again, from the same rows. What is
// generated before the last few of them would be older than the bound when its turn comes: it was, and the
// long answers, still under way, went with it.
TEST(SimulatorTest, NothingIsGeneratedThatWouldBeTooOldAfterUndoneSteps) {
  int64_t undone = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    SimJob j = Rehearsal(PlacementKind::kSplit, 8);
    j.seed = seed;
    j.controller.steps = 12;
    j.controller.checkpoint.every_steps = 6;
    j.limit_s = 1e6;
    j.faults.controller_kill_mean_s = 120;
    j.faults.resume_s = 5;
    const int64_t bound = j.controller.batch.max_lag_versions = 1;
    int64_t step = 0, free_at = 0;
    j.on_record = [&](const JournalEntry& e) {
      if (const auto* x = std::get_if<record::StepCommit>(&e.record)) step = x->step.value;
      if (const auto* x = std::get_if<record::Restore>(&e.record)) {
        undone += step - x->step.value;
        free_at = std::max(free_at, step - bound);
        step = x->step.value;
      }
      if (std::holds_alternative<record::Start>(e.record)) {
        EXPECT_GE(step, free_at) << "record " << e.lsn.value;
      }
    };
    EXPECT_EQ(Rehearse(j).steps_trained, 12);
  }
  EXPECT_GT(undone, 3) << "else nothing was tried";
}

TEST(SimulatorTest, OneKindOfFaultShowsWhereItBelongs) {
  const SimJob calm_job = Rehearsal(PlacementKind::kSplit, 4);
  const SimReport calm = Rehearse(calm_job);
  EXPECT_EQ(calm.faults, 0);
  const auto with = [&](const auto& change) {
    SimJob j = calm_job;
    change(j.faults);
    return Rehearse(j);
  };
  EXPECT_GT(with([](FaultShape& f) { f.kill_mean_s = 10; }).deaths, 0);
  EXPECT_GT(with([](FaultShape& f) { f.slow_share = 1, f.slow_factor = 3; }).seconds, 2 * calm.seconds);
  EXPECT_EQ(with([](FaultShape& f) { f.stop_at_s = 10; }).lives, 2);
  EXPECT_GT(with([](FaultShape& f) { f.loss = 0.2; }).faults, 0);
}

// All at once, no prompt is long, nobody waits: what a step that has begun does to a run that comes a moment
// later.
TEST(EngineModelTest, AStepThatHasBegunTakesNobodyIn) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       1);
  for (const int64_t quantum : {1, 16}) {
    EngineModel engine(cost, quantum, 1, 0);
    EngineRun run;
    run.tid = {0, 0, 0};
    run.context = 100;
    run.chunk_left = 4 * quantum, run.total_left = 1 << 20, run.turn_left = 1 << 20;
    engine.Add(run, 0);
    EngineRun late = run;
    late.tid = {0, 0, 1};
    const double moment = 0.1 * cost.DecodeSteps(1, 100, quantum);
    engine.CatchUp(moment);
    engine.Add(late, moment);
    EXPECT_EQ(engine.batch(), 1);
    EXPECT_NEAR(engine.Next(false), cost.DecodeSteps(1, 100, quantum), 1e-9)
        << "it joins at the end of the step";
    std::vector<std::pair<SampleId, double>> ends;
    for (double t = engine.Next(false); std::isfinite(t) && ends.size() < 2; t = engine.Next(false)) {
      for (const SampleId& tid : engine.Stop(t)) {
        ends.emplace_back(tid, t);
        EXPECT_EQ(engine.Take(tid).generated, 4 * quantum);
      }
    }
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_EQ(ends[0].first, run.tid);
    const double step = cost.DecodeSteps(1, 100, quantum);
    EXPECT_NEAR(ends[1].second - ends[0].second, step, 0.2 * step)
        << "a step behind, and never in step again";
  }
}

// A hundred chunks that are sent together are begun together, not one and then ninety-nine.
TEST(EngineModelTest, WhatComesInTheInstantOfAStepsBeginIsInIt) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       1);
  EngineModel engine(cost, 1, 1, 0);
  for (int32_t k = 0; k < 3; ++k) {
    EngineRun run;
    run.tid = {0, 0, k};
    run.context = run.prefill = 100;
    run.chunk_left = run.total_left = run.turn_left = 8;
    engine.CatchUp(1.0);
    engine.Add(run, 1.0);
    EXPECT_EQ(engine.batch(), k + 1);
  }
  EXPECT_EQ(engine.Stop(engine.Next(false)).size(), 3U);
}

TEST(EngineModelTest, WhatEndsInTheStepBeforeADrainHasEnded) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       1);
  EngineModel engine(cost, 8, 1, 0);
  EngineRun run;
  run.tid = {0, 0, 0};
  run.context = 10;
  run.chunk_left = run.turn_left = 1 << 20, run.total_left = 8;
  engine.Add(run, 0);
  const double over = engine.FinishStep(0.001);
  EXPECT_NEAR(over, cost.DecodeSteps(1, 10, 8), 1e-9);
  EXPECT_EQ(engine.Take(run.tid).total_left, 0);
}

// Some are taken out before their time and some come back, also to the same stop; the others stop when they
// should.
TEST(EngineModelTest, WhoIsTakenOutChangesNobodyElsesStop) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       1);
  Rng rng(5);
  EngineModel engine(cost, 1, 1, 0);
  std::map<SampleId, int64_t> chunks;
  double now = 0;
  int64_t ended = 0, taken = 0;
  const auto stop = [&] {
    now = engine.Next(false);
    ASSERT_TRUE(std::isfinite(now));
    for (const SampleId& tid : engine.Stop(now)) {
      EXPECT_EQ(engine.Take(tid).generated, chunks.at(tid)) << ToString(tid);
      chunks.erase(tid);
      ++ended;
    }
  };
  for (int i = 0; i < 3000; ++i) {
    engine.CatchUp(now);
    const SampleId tid{rng.Below(12), 0, 0};
    if (chunks.contains(tid)) {
      if (rng.Chance(0.7)) continue;
      EXPECT_LE(engine.Take(tid).generated, chunks.at(tid));
      chunks.erase(tid);
      ++taken;
    } else {
      EngineRun run;
      run.tid = tid;
      run.context = 100;
      run.chunk_left = chunks[tid] = 1 + rng.Below(6);
      run.total_left = run.turn_left = 1 << 20;
      engine.Add(run, now);
    }
    if (!chunks.empty() && rng.Chance(0.5)) stop();
  }
  while (!chunks.empty()) stop();
  EXPECT_TRUE(engine.Runs().empty());
  EXPECT_GT(std::min(ended, taken), 100);
}

TEST(SlotTimeTest, SharesAreOfSumsAndNotMeansOfShares) {
  SlotTime time;
  time.Hold(0, Role::kRollout, 0);
  time.Hold(1, Role::kActor, 0);
  time.Busy(Role::kRollout, 9);
  SlotTime::Cut window = time.Take(10);  // a long step
  EXPECT_NEAR(window.rollout.idle(), 0.1, 1e-12);
  EXPECT_EQ(window.actor.idle(), 1);
  window += time.Take(12);  // a short one, in which nothing was generated
  EXPECT_NEAR(window.rollout.idle(), 0.25, 1e-12);
  time.Hold(0, Role::kNone, 13);  // given up: held until then
  const SlotTime::Cut rest = time.Take(20);
  EXPECT_NEAR(rest.rollout.held, 1, 1e-12);
  EXPECT_NEAR(rest.all, 16, 1e-12);
}

TEST(CostModelTest, ClosedFormOfManyStepsIsTheSumOfThem) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       1);
  for (const int64_t batch : {1, 64, 3000}) {
    double sum = 0, kv = 5000;
    for (int i = 0; i < 3000; ++i, kv += static_cast<double>(batch)) sum += cost.DecodeSteps(batch, kv, 1);
    EXPECT_NEAR(cost.DecodeSteps(batch, 5000, 3000), sum, 1e-6 * sum) << batch;
    const double t = cost.DecodeSteps(batch, 5000, 1234);
    EXPECT_EQ(cost.StepsWithin(batch, 5000, t * (1 + 1e-9)), 1234);
    EXPECT_EQ(cost.StepsWithin(batch, 5000, t * (1 - 1e-9)), 1233);
  }
}

// A ring of n: each sends a part of 1 / n to the next in n - 1 rounds to sum it and in n - 1 more to hand the
// sum round.
TEST(CostModelTest, GradientsAreSummedAroundARing) {
  const CostModel cost({"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001}, {"m", 8e9, 8e9, 32, 32, 8, 128},
                       4);
  EXPECT_EQ(cost.AllReduce(1), 0);
  for (int64_t slots = 2; slots < 40; ++slots) {
    const double part = 4 * 8e9 / 4 / static_cast<double>(slots);  // of what one of four devices holds, bytes
    double seconds = 0;
    for (int64_t round = 0; round < 2 * (slots - 1); ++round) seconds += part / 5e10;
    EXPECT_NEAR(cost.AllReduce(slots), seconds, 1e-9 * seconds) << slots;
  }
}

// By hand: two shares of four slots, each share of two with halves of the model.
TEST(CostModelTest, SlotsThatShareAStepPayForWhatTheyExchange) {
  HardwareProfile hardware{"h", "", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.001};
  hardware.collective_s = 1e-5;
  ModelShape model{"m", 8e9, 8e9, 32, 32, 8, 128};
  model.hidden_size = 4000;
  const CostModel cost(hardware, model, 1);
  const double tokens = 6000, squares = 6000.0 * 500;
  const TrainingLayout one{.micro_batches = 3, .one_host = true};
  EXPECT_EQ(cost.Collectives(one, tokens, false), 0);
  TrainingLayout mesh = one;
  mesh.data = mesh.tensor = 2;
  // Gradients of half of the model around a ring of two, in float32; activations of a micro-batch after the
  // embedding, each half of a block and the head, forward and backward; the weights.
  const double gradients = 2 * 0.5 * 4 * 4e9 / 4e11 + 1e-5;
  const double sums = 3 * (2 + 4 * 32) * (2 * 0.5 * 2 * 4000 * 2000 / 4e11 + 1e-5);
  const double weights = 0.5 * 2 * 8e9 / 4e11 + 1e-5;
  EXPECT_NEAR(cost.Collectives(mesh, tokens, false), gradients + sums + weights, 1e-9);
  EXPECT_NEAR(cost.Collectives(mesh, tokens, true) - cost.Collectives(mesh, tokens, false), sums * 64 / 130,
              1e-9);
  mesh.one_host = false;
  EXPECT_GT(cost.Collectives(mesh, tokens, false), 7 * (gradients + sums + weights)) << "a slower network";
  // Halves are computed in half of the time, and updated in it.
  EXPECT_NEAR(cost.TrainShare(mesh, tokens, squares, false, 0.4),
              cost.TrainShare(one, tokens, squares, false, 0.4) / 2, 1e-9);
  // A shared optimizer: sums go to their owner alone, and new weights come back; with shared gradients after
  // each micro-batch.
  TrainingLayout zero = one;
  zero.data = 4;
  const double all = cost.Collectives(zero, tokens, false), update = 28 * 8e9 / 3e12;
  const double share = cost.TrainShare(zero, tokens, squares, false, 0.4);
  zero.zero = 1;
  const double scatter = 0.75 * 4 * 8e9 / 4e11 + 1e-5, gather = 0.75 * 2 * 8e9 / 4e11 + 1e-5;
  EXPECT_NEAR(cost.Collectives(zero, tokens, false), scatter + gather, 1e-9);
  EXPECT_LT(scatter + gather, all);
  EXPECT_NEAR(share - cost.TrainShare(zero, tokens, squares, false, 0.4), update * 3 / 4, 1e-9);
  zero.zero = 2;
  EXPECT_NEAR(cost.Collectives(zero, tokens, false), 3 * scatter + gather, 1e-9);
  // What a config does not say is not counted: a step as it always was.
  EXPECT_EQ(cost.TrainShare({}, tokens, squares, false, 0.4), cost.Train(tokens, squares, 1, false, 0.4));
  EXPECT_EQ(cost.Collectives({.data = 8}, tokens, false), cost.AllReduce(8));
}

// Whoever shares what, all is trained, and the step takes what the cost model says more or less.
TEST(SimulatorTest, SlotsThatShareTheModelOrTheOptimizerTrainAllSteps) {
  for (const PlacementKind placement :
       {PlacementKind::kColocated, PlacementKind::kSplit, PlacementKind::kMultiplexed}) {
    SCOPED_TRACE(Name(placement));
    std::map<std::pair<int64_t, int64_t>, double> seconds;
    for (const int64_t tensor : {1, 2}) {
      for (const int64_t zero : {0, 1, 2}) {
        SimJob j = Rehearsal(placement, 8);
        j.hardware.net_bytes_per_s = 2e9;  // so that it counts
        j.controller.fleet.actor_slots = 4;
        j.controller.fleet.tensor = tensor;
        j.controller.fleet.zero = zero > 0;
        j.zero = zero;
        j.micro_batch_tokens = 2048;
        const SimReport r = Rehearse(j);
        EXPECT_EQ(r.steps, 4);
        seconds[{tensor, zero}] = r.step_s;
      }
    }
    EXPECT_LT((seconds[{1, 1}]), (seconds[{1, 0}])) << "less goes over the network";
    EXPECT_GT((seconds[{1, 2}]), (seconds[{1, 1}])) << "sums after each micro-batch";
  }
}

TEST(CostModelTest, ProfileWithoutBandwidthIsRefusedByName) {
  const Status s = CheckProfile({"h", "", 1, 0, 1, 1, 1, 1, 0});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("bytes_per_s is 0"), std::string::npos);
}

}  // namespace
}  // namespace tidepool::scheduler
