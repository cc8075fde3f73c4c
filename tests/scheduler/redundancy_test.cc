// rollout.redundancy: the first samples of a group that are graded are trained, and nobody waits for the
// others.

#include <gtest/gtest.h>

#include <map>

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

}  // namespace
}  // namespace tidepool::scheduler
