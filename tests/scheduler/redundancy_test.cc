// rollout.redundancy: the first samples of a group that are graded are trained, and nobody waits for the
// others.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler/checker.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

SimOptions Redundant(int64_t redundancy) {
  SimOptions o{.controller = SmallJob(PlacementKind::kSplit, 3), .seed = 5, .faults = {}};
  o.controller.batch.group_size += redundancy;
  o.controller.batch.redundancy = redundancy;
  return o;
}

TEST(RedundancyTest, AGroupIsTrainedWithTheSamplesThatWereFirst) {
  const SimOptions o = Redundant(2);
  const int64_t trained = o.controller.batch.group_size - 2;
  SimCluster cluster(o);
  const SimResult r = cluster.Run();
  ASSERT_EQ(r.code, 0) << r.why;
  int64_t dropped = 0, reported = 0, tokens = 0;
  for (const JournalEntry& e : cluster.journal()) {
    if (const auto* step = std::get_if<record::StepCommit>(&e.record)) {
      std::map<int64_t, int64_t> rows;
      for (const auto& row : step->rows) ++rows[row.tid.ordinal];
      for (const auto& [ordinal, count] : rows) EXPECT_EQ(count, trained) << ordinal;
    }
    const auto* drop = std::get_if<record::Drop>(&e.record);
    dropped += drop != nullptr && drop->reason == DropReason::kOverflowPolicy ? 1 : 0;
  }
  for (const command::StepReport& step : cluster.reports()) {
    reported += step.redundant;
    tokens += step.redundant_tokens;
  }
  EXPECT_GE(dropped, reported);
  EXPECT_GT(reported, 0);
  EXPECT_GT(tokens, 0);
}

TEST(RedundancyTest, WhatIsLostOnTheWayIsMadeUpForAndTheJournalIsProven) {
  SimOptions o = Redundant(2);
  o.faults.kill_mean_s = 3;
  o.faults.controller_crash_mean_s = 5;
  o.faults.heal_after_s = 20;
  for (o.seed = 0; o.seed < 20; ++o.seed) {
    SCOPED_TRACE(o.seed);
    SimCluster cluster(o);
    const SimResult r = cluster.Run();
    ASSERT_EQ(r.code, 0) << r.why;
    const CheckResult check = Check(cluster.journal());
    EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
  }
}

// What is dropped too early, or of a run that promised to wait for all, is found.
TEST(RedundancyTest, ADropBeforeEnoughAreGradedIsAViolation) {
  SimCluster cluster(Redundant(2));
  ASSERT_EQ(cluster.Run().code, 0);
  const std::vector<JournalEntry> good = cluster.journal();
  EXPECT_TRUE(Check(good).ok) << Check(good).why;

  std::vector<JournalEntry> fewer = good;
  std::get<record::Config>(fewer[0].record)->redundancy = 1;
  EXPECT_EQ(Check(fewer).predicate, "Q13");
  std::vector<JournalEntry> none = good;
  std::get<record::Config>(none[0].record)->redundancy = 0;
  EXPECT_EQ(Check(none).predicate, "Q13");

  // The reason of a sample that was graded.
  std::vector<JournalEntry> graded = good;
  const auto first = std::find_if(graded.begin(), graded.end(), [&](const JournalEntry& e) {
    return std::holds_alternative<record::Graded>(e.record);
  });
  ASSERT_NE(first, graded.end());
  const SampleId tid = std::get<record::Graded>(first->record).tid;
  JournalEntry drop = *first;
  drop.record = record::Drop{tid, DropReason::kOverflowPolicy};
  graded.insert(first + 1, drop);
  for (size_t i = 0; i < graded.size(); ++i) graded[i].lsn = {static_cast<int64_t>(i)};
  EXPECT_EQ(Check(graded).predicate, "Q13");
}

}  // namespace
}  // namespace tidepool::scheduler
