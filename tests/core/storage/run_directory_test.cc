#include "core/storage/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::HasSubstr;

constexpr int64_t kNoon = 1795262400;  // 2026-11-21 12:00:00 UTC

std::string MustCreate(FileSystem& fs, const std::string& name, int64_t seconds) {
  auto dir = CreateRunDirectory(fs, {.name = name, .unix_seconds = seconds});
  TP_CHECK(dir.ok()) << dir.status().ToString();
  return *dir;
}

void WriteJournal(FileSystem& fs, const std::string& dir, const std::vector<JournalRecord>& records) {
  auto writer = JournalWriter::Open(fs, RunPaths(dir).journal(), dir);
  TP_CHECK(writer.ok()) << writer.status().ToString();
  for (const JournalRecord& record : records) (*writer)->Append(record, 0);
  TP_CHECK((*writer)->Close().ok());
}

JournalRecord ConfigOf(int64_t steps) {
  record::Config config;
  config->steps = steps;
  return config;
}
JournalRecord Commit(int64_t step) {
  record::StepCommit commit;
  commit.step = StepNumber{step};
  return commit;
}
JournalRecord RestoreTo(int64_t step) {
  record::Restore restore;
  restore.step = StepNumber{step};
  return restore;
}
JournalRecord End(int32_t code, bool complete) {
  record::EndRun end;
  end.code = code;
  end.finished = complete ? 1 : 0;
  return end;
}

TEST(RunDirectoryTest, NamesCarryTheTimeAndNeverCollide) {
  MemoryFileSystem fs;
  EXPECT_EQ(MustCreate(fs, "quick start/1", kNoon), "runs/quick-start-1-20261121T120000Z");
  EXPECT_EQ(MustCreate(fs, "quick start/1", kNoon), "runs/quick-start-1-20261121T120000Z-2");
  EXPECT_EQ(MustCreate(fs, "quick start/1", kNoon), "runs/quick-start-1-20261121T120000Z-3");
  EXPECT_EQ(FolderName(""), "run");
  EXPECT_EQ(FolderName("../x"), "run..-x");
}

TEST(RunDirectoryTest, NamedFolderHasToBeEmpty) {
  MemoryFileSystem fs;
  EXPECT_EQ(*CreateRunDirectory(fs, {.run_dir = "here/mine"}), "here/mine");
  EXPECT_TRUE(CreateRunDirectory(fs, {.run_dir = "here/mine"}).ok()) << "an empty folder is taken";
  ASSERT_TRUE(fs.WriteFile("here/mine/lock", "x").ok());
  ASSERT_TRUE(fs.WriteFile("here/mine/config.yaml.tmp", "x").ok());
  ASSERT_TRUE(fs.MakeDirectories("here/mine/warm_start").ok());
  ASSERT_TRUE(fs.WriteFile("here/mine/warm_start/config.yaml", "x").ok());
  EXPECT_TRUE(CreateRunDirectory(fs, {.run_dir = "here/mine"}).ok()) << "one whose run died before it began";
  ASSERT_TRUE(fs.MakeDirectories("here/mine/warm_start/journal").ok());
  EXPECT_FALSE(CreateRunDirectory(fs, {.run_dir = "here/mine"}).ok()) << "its warm start has begun";
  ASSERT_TRUE(fs.MakeDirectory("other").ok());
  ASSERT_TRUE(fs.WriteFile("other/notes", "x").ok());
  EXPECT_THAT(CreateRunDirectory(fs, {.run_dir = "other"}).status().message(),
              testing::AllOf(HasSubstr("holds no run"), testing::Not(HasSubstr("--resume"))));
  ASSERT_TRUE(fs.WriteFile("here/mine/config.yaml", "x").ok());
  const auto taken = CreateRunDirectory(fs, {.run_dir = "here/mine"});
  EXPECT_EQ(taken.status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(taken.status().message(), HasSubstr("--resume"));
  EXPECT_EQ(*fs.ReadFile("here/mine/config.yaml"), "x");
  EXPECT_EQ(CreateRunDirectory(fs, {.run_dir = "here/mine/config.yaml"}).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(RunDirectoryTest, FullDiskIsSaidBeforeTheStart) {
  MemoryFileSystem fs(MemoryFaults{.capacity_bytes = 10 << 20});
  const auto dir = CreateRunDirectory(fs, {.name = "a", .need = {20 << 20, "2 checkpoints"}});
  EXPECT_EQ(dir.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(
      dir.status().message(),
      testing::AllOf(HasSubstr("runs: the disk has 10 MiB free, the run needs about 20 MiB (2 checkpoints)"),
                     testing::Not(HasSubstr("checkpoint.keep"))));
  const auto more = CreateRunDirectory(fs, {.name = "a", .need = {20 << 20, "4 checkpoints", true}});
  EXPECT_THAT(more.status().message(), HasSubstr("lower checkpoint.keep"));
}

TEST(RunDirectoryTest, UnwritableParentIsNamedWithAdvice) {
  RealFileSystem fs;
  // /proc refuses new folders whoever asks, so this works for root as well.
  const auto dir = CreateRunDirectory(fs, {.root = "/proc/runs", .name = "a"});
  ASSERT_FALSE(dir.ok());
  EXPECT_THAT(dir.status().message(), HasSubstr("/proc/runs"));
  EXPECT_THAT(dir.status().message(), HasSubstr("--run-dir"));
}

TEST(RunDirectoryTest, StoppedRunIsNotFinishedUntilAllOfItsEndIsDone) {
  MemoryFileSystem fs;
  const std::string dir = MustCreate(fs, "a", kNoon);
  const auto finished = [&](int64_t steps) { return ReadRunOnDisk(fs, dir)->Finished(steps, 0.9); };
  WriteJournal(fs, dir, {ConfigOf(3), Commit(1), End(0, false)});  // SIGTERM: code 0
  EXPECT_FALSE(finished(3));
  EXPECT_EQ(ReadRunOnDisk(fs, dir)->run_id, dir);
  EXPECT_EQ(ReadRunOnDisk(fs, dir)->steps, 3);
  WriteJournal(fs, dir, {Commit(2), RestoreTo(1)});
  EXPECT_EQ(ReadRunOnDisk(fs, dir)->last_step, StepNumber{1}) << "a restore undoes steps";
  WriteJournal(fs, dir, {Commit(2), Commit(3)});
  EXPECT_FALSE(finished(3)) << "it died while ending";
  WriteJournal(fs, dir, {RestoreTo(3), End(0, false)});
  EXPECT_FALSE(finished(3)) << "it was stopped in its last evaluation";
  WriteJournal(fs, dir, {RestoreTo(3), End(0, true)});
  EXPECT_TRUE(finished(3));
  EXPECT_FALSE(finished(4)) << "more steps are wanted now";
  const auto evaluated = [](int64_t correct, int64_t step = 3) {
    record::EvalResult result;
    result.step = {step}, result.correct = correct, result.total = 10;
    return result;
  };
  WriteJournal(fs, dir, {RestoreTo(3), evaluated(8), End(0, true)});
  EXPECT_FALSE(finished(4)) << "nor is eval.stop_at_accuracy reached";
  WriteJournal(fs, dir, {RestoreTo(3), evaluated(9), End(0, true)});
  EXPECT_TRUE(finished(4));
  WriteJournal(fs, dir, {RestoreTo(2), Commit(3), End(0, true)});
  EXPECT_FALSE(finished(4)) << "the step that reached it was undone";
  EXPECT_EQ(ReadRunOnDisk(fs, "runs/none").status().code(), StatusCode::kNotFound);

  // What `tidepool prune` deletes of a run that has ended leaves it ended.
  WriteJournal(fs, dir, {record::CheckpointCommit{.ckpt = 4, .step = {3}}, End(0, true)});
  WriteJournal(fs, dir, {record::CheckpointCommit{.ckpt = 5, .step = {3}}, End(0, true)});
  EXPECT_EQ(ReadRunOnDisk(fs, dir)->checkpoints, 2);
  WriteJournal(fs, dir, {record::CheckpointDelete{4}});
  EXPECT_TRUE(finished(3));
  EXPECT_FALSE(ReadRunOnDisk(fs, dir)->OnlyFinal());
  WriteJournal(fs, dir, {record::CheckpointDelete{5}});
  EXPECT_TRUE(finished(3));
  EXPECT_TRUE(ReadRunOnDisk(fs, dir)->OnlyFinal());
}

TEST(RunDirectoryTest, OneProcessWorksOnARun) {
  MemoryFileSystem fs;
  const std::string dir = MustCreate(fs, "a", kNoon);
  auto lock = LockRun(fs, dir);
  ASSERT_TRUE(lock.ok());
  EXPECT_THAT(LockRun(fs, dir).status().message(), HasSubstr("controller pid " + std::to_string(::getpid())));
}

}  // namespace
}  // namespace tidepool::storage
