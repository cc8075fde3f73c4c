#include "workers/controller/sample_store.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

constexpr SampleId kTid{7, 0, 1};
constexpr WorkerRef kLate{{2}, {5}}, kNext{{3}, {6}};

record::Graded VerdictOf(const WorkerRef& grader) {
  return {.tid = kTid, .outcome = GradeOutcome::kOk, .grader = grader};
}

// A grader that was taken for lost may answer after the one that was asked instead of it.
TEST(SampleStoreTest, WhatAGraderSaysIsShownOnlyWithItsVerdict) {
  SampleStore samples;
  samples.PutRow(kTid.ordinal, false, {});
  samples.PutDetails(kTid, kNext, {{"judge", "the verdict"}});
  samples.PutDetails(kTid, kLate, {{"judge", "refused"}});
  EXPECT_TRUE(samples.DetailsOf(kTid).empty()) << "nothing is on record yet";
  samples.OnGraded(VerdictOf(kNext));
  EXPECT_EQ(samples.DetailsOf(kTid), (SampleStore::Details{{"judge", "the verdict"}}));
  samples.PutDetails(kTid, kLate, {{"judge", "refused again"}});
  EXPECT_EQ(samples.DetailsOf(kTid), (SampleStore::Details{{"judge", "the verdict"}}));
}

TEST(SampleStoreTest, NothingIsKeptOfASampleThatIsOver) {
  SampleStore samples;
  samples.PutRow(kTid.ordinal, false, {});
  samples.Discard(kTid);
  samples.PutDetails(kTid, kLate, {{"judge", "too late"}});
  samples.OnGraded(VerdictOf(kLate));
  EXPECT_TRUE(samples.DetailsOf(kTid).empty());
}

}  // namespace
}  // namespace tidepool::workers
