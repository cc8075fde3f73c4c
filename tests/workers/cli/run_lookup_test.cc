#include "workers/cli/run_lookup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

TEST(FindRunTest, TakesAFolderAsItIs) {
  const ScratchFolder scratch;
  scratch.Write("elsewhere/config.yaml", "name: x\n");
  const auto run = FindRun("elsewhere/");
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  EXPECT_EQ(run->dir, "elsewhere");
  EXPECT_EQ(run->journal, "elsewhere/journal");
}

TEST(FindRunTest, TakesAJournalFolder) {
  const ScratchFolder scratch;
  scratch.Write("copy/0000.tpj", "");
  const auto run = FindRun("copy");
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  EXPECT_EQ(run->dir, "");
  EXPECT_EQ(run->journal, "copy");
  EXPECT_EQ(FindRunDirectory("copy", "x is needed").status().code(), StatusCode::kInvalidArgument);
}

TEST(FindRunTest, TakesTheNewestThatBeginsSo) {
  const ScratchFolder scratch;
  // The time decides, not the name, and -10 is later than -9.
  for (const char* name :
       {"quick-b-20260101T000000Z", "quick-20260301T000000Z-9", "quick-20260301T000000Z-10",
        "quick-a-20260201T000000Z", "other-20270101T000000Z"}) {
    scratch.Write(std::string("runs/") + name + "/config.yaml", "name: x\n");
  }
  EXPECT_EQ(FindRun("quick")->dir, "runs/quick-20260301T000000Z-10");
  EXPECT_EQ(FindRun("quick-b")->dir, "runs/quick-b-20260101T000000Z");
  EXPECT_EQ(FindRun("quick-20260301T000000Z-9")->dir, "runs/quick-20260301T000000Z-9");
}

TEST(FindRunTest, ARunOfThatNameComesBeforeOneWhoseNameGoesOn) {
  const ScratchFolder scratch;
  for (const char* name : {"dpo-20260101T000000Z", "dpo-20260102T000000Z", "dpo2-20260301T000000Z"})
    scratch.Write(std::string("runs/") + name + "/config.yaml", "name: x\n");
  EXPECT_EQ(FindRun("dpo")->dir, "runs/dpo-20260102T000000Z");
  EXPECT_EQ(FindRun("dp")->dir, "runs/dpo2-20260301T000000Z");
}

TEST(FindRunTest, AnotherFolderOfThatNameIsNoRun) {
  const ScratchFolder scratch;
  scratch.Write("mine/rows.jsonl", "");
  scratch.Write("runs/mine-20260301T000000Z/config.yaml", "name: mine\n");
  EXPECT_EQ(FindRun("mine")->dir, "runs/mine-20260301T000000Z");
}

TEST(FindRunTest, SaysWhatThereIsInstead) {
  const ScratchFolder scratch;
  EXPECT_NE(FindRun("x").status().message().find("runs/ holds no run"), std::string::npos);
  scratch.Write("runs/quick-20260301T000000Z/config.yaml", "name: x\n");
  scratch.Write("notes.txt", "x");
  scratch.Write("empty/notes.txt", "x");
  const auto missing = FindRun("slow");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("quick-20260301T000000Z"), std::string::npos)
      << missing.status().message();
  EXPECT_EQ(FindRun("notes.txt").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FindRun("empty").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FindRun("").status().code(), StatusCode::kInvalidArgument);
  scratch.Write("begun/lock", "");
  EXPECT_NE(FindRun("begun").status().message().find("ended before it began"), std::string::npos);
}

TEST(RunLookupTest, KnowsOwnProcessesFromOthers) {
  EXPECT_FALSE(IsTidepoolProcess(0));
  EXPECT_FALSE(IsTidepoolProcess(getpid()));  // alive, but not one of ours
}

TEST(RunLookupTest, WritesBytesAndDurations) {
  EXPECT_EQ(BytesText(17), "17 B");
  EXPECT_EQ(BytesText(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(BytesText(int64_t{312} << 20), "312 MiB");
}

}  // namespace
}  // namespace tidepool::workers
