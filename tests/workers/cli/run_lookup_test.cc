#include "workers/cli/run_lookup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"
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

TEST(FindRunTest, AMistypedNameNamesTheNearestRun) {
  const ScratchFolder scratch;
  for (const char* name : {"quickstart-20260101T000000Z", "dpo-20260102T000000Z", "mine"})
    scratch.Write(std::string("runs/") + name + "/config.yaml", "name: x\n");
  const auto message = [](const char* name) { return FindRun(name).status().message(); };
  EXPECT_NE(message("quikstart").find("did you mean quickstart?"), std::string::npos) << message("quikstart");
  EXPECT_NE(message("miine").find("did you mean mine?"), std::string::npos) << message("miine");
  EXPECT_EQ(message("zzzzzzzz").find("did you mean"), std::string::npos) << message("zzzzzzzz");
  EXPECT_NE(message("zzzzzzzz").find("`tidepool runs`"), std::string::npos) << message("zzzzzzzz");
}

TEST(FindRunTest, AnotherFolderOfThatNameIsNoRun) {
  const ScratchFolder scratch;
  scratch.Write("mine/rows.jsonl", "");
  scratch.Write("runs/mine-20260301T000000Z/config.yaml", "name: mine\n");
  EXPECT_EQ(FindRun("mine")->dir, "runs/mine-20260301T000000Z");
}

// config.yaml, and a journal of what it did.
void WriteRun(const ScratchFolder& scratch, const std::string& dir, const std::string& name,
              const std::vector<JournalRecord>& records) {
  scratch.Write(dir + "/config.yaml", "name: " + name + "   # x.yaml:1\n");
  if (records.empty()) return;
  RealFileSystem files;
  auto writer = storage::JournalWriter::Open(files, dir + "/journal", "id");
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  for (const JournalRecord& record : records) (*writer)->Append(record, 0);
  ASSERT_TRUE((*writer)->Close().ok());
}

std::vector<JournalRecord> Steps(int64_t done, bool finished) {
  record::Config config;
  config->steps = 20;
  record::StepCommit commit;
  commit.step = StepNumber{done};
  record::EndRun end;
  end.finished = finished ? 1 : 0;
  return {config, commit, end};
}

TEST(FindRunToResumeTest, ConfigAndNameMeanTheNewestThatIsNotFinished) {
  const ScratchFolder scratch;
  EXPECT_EQ(FindRunOfConfig("a").status().code(), StatusCode::kNotFound);
  WriteRun(scratch, "runs/a-20260101T000000Z", "a", Steps(3, false));
  WriteRun(scratch, "runs/a-20260201T000000Z", "a", Steps(7, false));
  WriteRun(scratch, "runs/a-20260301T000000Z", "a", Steps(2, true));  // of fewer steps than the config wants
  scratch.Write("runs/a-20260401T000000Z/lock", "");                  // ended before it began
  WriteRun(scratch, "runs/a-b-20260501T000000Z", "a-b", Steps(1, false));
  for (const auto& found :
       {FindRunOfConfig("a"), FindRunToResume("a", "why"), FindRunToResume("a-2026", "why")}) {
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(*found, "runs/a-20260201T000000Z");
  }
  EXPECT_EQ(*FindRunToResume("a-20260301T000000Z", "why"), "runs/a-20260301T000000Z");
  EXPECT_EQ(*FindRunToResume("runs/a-20260301T000000Z", "why"), "runs/a-20260301T000000Z");
  EXPECT_EQ(FindRunOfConfig("a-").status().code(), StatusCode::kNotFound) << "no beginning of a name";
  // Its folder was named by --run-dir; it died in its warm start, before it had a journal.
  WriteRun(scratch, "runs/mine", "a", {});
  EXPECT_EQ(*FindRunOfConfig("a"), "runs/mine");
  EXPECT_EQ(*FindRunToResume("a", "why"), "runs/mine");
}

TEST(FindRunToResumeTest, WhereAllAreFinishedTheNewestSaysSo) {
  const ScratchFolder scratch;
  WriteRun(scratch, "runs/a-20260101T000000Z", "a", Steps(20, true));
  WriteRun(scratch, "runs/a-20260201T000000Z", "a", Steps(20, true));
  EXPECT_EQ(*FindRunOfConfig("a"), "runs/a-20260201T000000Z");
  EXPECT_EQ(*FindRunToResume("a", "why"), "runs/a-20260201T000000Z");
}

TEST(FindRunToResumeTest, DamagedJournalIsAnErrorAndNotSkipped) {
  const ScratchFolder scratch;
  WriteRun(scratch, "runs/a-20260101T000000Z", "a", Steps(3, false));
  const std::string newer = "runs/a-20260201T000000Z";
  WriteRun(scratch, newer, "a", Steps(3, false));
  WriteRun(scratch, newer, "a", Steps(4, false));
  const std::string file = newer + "/journal/0000.tpj";
  RealFileSystem files;
  std::string bytes = *files.ReadFile(file);
  bytes[100] = static_cast<char>(~bytes[100]);
  scratch.Write(file, bytes);
  EXPECT_EQ(FindRunOfConfig("a").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(FindRunToResume("a", "why").status().code(), StatusCode::kDataLoss);
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
