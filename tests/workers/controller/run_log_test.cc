#include "workers/controller/run_log.h"

#include <gtest/gtest.h>

#include "core/base/places.h"
#include "core/observe/log.h"
#include "workers/controller/scheduler_options.h"

namespace tidepool::workers {
namespace {

// As it stands in the log.
std::string LineOf(const JournalRecord& r) {
  const auto e = EventOf(r, [](int64_t place) { return "device-" + std::to_string(place); });
  if (!e) return "";
  LogFields fields = e->fields;
  if (!e->text.empty()) fields.emplace_back("text", e->text);
  return std::string(Name(e->level)) + " " + observe::LogLine(e->event, fields);
}

TEST(RunLogTest, SaysWhoDidWhat) {
  EXPECT_EQ(LineOf(record::Fault{
                "worker_lost", "device-2", {7}, "process 12 was killed by signal 9 (SIGKILL)", {2}}),
            "warn event=worker_lost worker=device-2/inc7 "
            "text=\"worker device-2: process 12 was killed by signal 9 (SIGKILL)\"");
  EXPECT_EQ(LineOf(record::Fault{"storage", "controller", {}, "no \"space\""}),
            "error event=fault class=storage actor=controller text=\"no 'space'\"");
  EXPECT_EQ(LineOf(record::Fault{"train", "w2", {}, "a plug-in called w2 failed"}),
            "error event=fault class=train actor=w2 text=\"a plug-in called w2 failed\"");
  EXPECT_EQ(LineOf(record::Join{{{0}, {1}}, "device-0", Role::kNone, {SlotId{0}, SlotId{1}}}),
            "info event=worker_joined worker=device-0/inc1 slots=0,1");
  EXPECT_EQ(LineOf(record::Loaded{{{2}, {7}}, {0, 3}, 7}),
            "debug event=weights_loaded worker=device-2/inc7 version=0:3");
  EXPECT_EQ(LineOf(record::CheckpointBegin{3, {40}}), "info event=checkpoint_begun ckpt=3 step=40");
  EXPECT_EQ(LineOf(record::EvalResult{{5}, {0, 5}, 3, 4, 0, 0.75, 0.5, {{"exact_answer", 0.75, 0.5}}}),
            "info event=evaluation step=5 version=0:5 correct=3 total=4 reward_mean=0.75 exact_answer=0.75");
  EXPECT_EQ(LineOf(record::EvalResult{
                .step = {5}, .v = {0, 5}, .correct = 3, .total = 4, .rewards = {}, .lost = 2}),
            "info event=evaluation step=5 version=0:5 correct=3 total=4 reward_mean=0 lost=2");
}

TEST(RunLogTest, WhatHappensAtEveryStepIsForDebugging) {
  EXPECT_EQ(LineOf(record::Publish{{0, 5}, 7}), "debug event=weights_published version=0:5");
  EXPECT_EQ(LineOf(record::StepCommit{{5}, {0, 5}, 7, {}}),
            "debug event=step_done step=5 version=0:5 rows=0");
}

std::string PlaceName(int64_t place) {
  return place == 0 ? "device-0" : "reward-" + std::to_string(place - 1);
}

TEST(RunLogTest, AWorkerHasOneNameInWhatTheSchedulerSays) {
  using scheduler::command::Log;
  const LogEvent said =
      EventOf(Log{LogLevel::kInfo, "hedged", "does not get on", {{"chunks", "2"}}, {{1}, {3}}}, PlaceName);
  EXPECT_EQ(said.text, "worker reward-0 does not get on");
  EXPECT_EQ(observe::LogLine(said.event, said.fields), "event=hedged worker=reward-0/inc3 chunks=2");
}

TEST(RunLogTest, TheSchedulerCallsWorkersAsTheirLogsAreCalled) {
  JobConfig config;
  config.cluster.slots = 2;
  for (const char* game : {"", "guess"}) {
    RlJob job;
    job.environment.name = game;
    config.job = job;
    const scheduler::ControllerOptions options = SchedulerOptions(config, /*held_out=*/0);
    for (const int64_t place : {0, 1, 2, 3})
      EXPECT_EQ(options.NameOf(WorkerId{place}), tidepool::PlaceName(config, place));
    EXPECT_EQ(options.NameOf(WorkerRef{{2}, {5}}), *game == '\0' ? "reward-0/inc5" : "environment-0/inc5");
  }
}

TEST(RunLogTest, WhatAPlugInSaysOfAWorkerIsLeftAsItIs) {
  const std::string words = "the judge said: worker w1/inc3 is lazy, actor=w1";
  EXPECT_EQ(EventOf(scheduler::command::Log{LogLevel::kWarn, "reward_infra", words, {}, {}}, PlaceName).text,
            words);
  EXPECT_EQ(LineOf(record::Fault{"train", "device-1", {3}, words, {1}}),
            "error event=fault class=train worker=device-1/inc3 text=\"" + words + "\"");
}

TEST(RunLogTest, SamplesAreInTheJournalAlone) {
  EXPECT_EQ(LineOf(record::Issue{}), "");
  EXPECT_EQ(LineOf(record::Enq{}), "");
  EXPECT_EQ(LineOf(record::Graded{}), "");
}

}  // namespace
}  // namespace tidepool::workers
