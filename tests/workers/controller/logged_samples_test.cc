// What the controller makes of workers that read and write the run's folder.

#include "workers/controller/logged_samples.h"

#include <gtest/gtest.h>

#include "workers/controller/sample_store.h"

namespace tidepool::workers {
namespace {

TimePoint T(double s) { return {FromSeconds(s)}; }

TEST(LoggedSamplesTest, AGraderThatCouldNotReadIsAskedAgainAfterAWhile) {
  SampleStore samples;
  LoggedSamples logged(samples, /*episodes=*/false, {});
  const WorkerRef grader{{5}, {7}}, other{{6}, {8}};
  const scheduler::command::Grade grade{.grader = grader, .tid = {1, 0, 0}};
  logged.Tick(T(100));
  EXPECT_FALSE(logged.Reads(grade)) << "it has not said that it sees the folder";
  logged.Add(grader, /*device=*/false);
  logged.Add(other, /*device=*/false);
  EXPECT_TRUE(logged.Reads(grade));
  logged.Blind(grader);
  EXPECT_FALSE(logged.Reads(grade));
  EXPECT_TRUE(logged.Reads({.grader = other, .tid = {2, 0, 0}}));
  logged.Tick(T(100) + LoggedSamples::kBlind - FromSeconds(1));
  EXPECT_FALSE(logged.Reads(grade));
  logged.Tick(T(100) + LoggedSamples::kBlind + FromSeconds(1));
  EXPECT_TRUE(logged.Reads(grade)) << "one slow moment of a disk is not for ever";
  logged.Blind(grader);
  EXPECT_FALSE(logged.Reads(grade));
}

}  // namespace
}  // namespace tidepool::workers
