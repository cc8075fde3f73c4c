// `tidepool prune` over the folder of a run whose journal a simulated run of the real controller has written,
// with checkpoints of real files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/real_file_system.h"
#include "core/storage/checkpoint.h"
#include "core/storage/journal.h"
#include "core/storage/run_directory.h"
#include "scheduler/run_state.h"
#include "tests/scheduler/sim_cluster.h"
#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class PruneTest : public testing::Test {
 protected:
  PruneTest() {
    scratch_.Write(run_ + "/config.yaml",
                   "name: sim\njob: rl\ndata: {task: reverse}\nmodel: {init: {}}\nreward: {functions: "
                   "[{name: exact_answer}]}\n");
    WriteRun();
  }

  // The checkpoints that are left at the end have files; CK_COMMIT names their manifests.
  void WriteRun() {
    scheduler::SimCluster cluster(
        {.controller = scheduler::SmallJob(PlacementKind::kColocated), .seed = 1, .faults = {}});
    EXPECT_EQ(cluster.Run().code, 0);
    std::vector<JournalEntry> entries = cluster.journal();
    scheduler::RunState state;
    for (const JournalEntry& entry : entries) ASSERT_TRUE(state.Apply(entry.record).ok());
    auto writer = *storage::JournalWriter::Open(real_, run_ + "/journal", "sim");
    for (JournalEntry& entry : entries) {
      if (auto* commit = std::get_if<record::CheckpointCommit>(&entry.record);
          commit != nullptr && state.checkpoints().contains(commit->ckpt)) {
        commit->manifest_digest = WriteCheckpoint(*commit);
        steps_.push_back(commit->step.value);
      }
      // The state has the digests of the manifests in it.
      if (auto* snapshot = std::get_if<record::Snapshot>(&entry.record)) snapshot->state_digest = 0;
      writer->Append(entry.record, entry.mono_ns);
    }
    ASSERT_TRUE(writer->Close().ok());
    ASSERT_EQ(steps_.size(), 2U);
  }

  uint64_t WriteCheckpoint(const record::CheckpointCommit& commit) {
    auto writer = *storage::CheckpointWriter::Begin(
        real_, run_ + "/checkpoints", {.step = commit.step, .ctl_epoch = 1, .ckpt = commit.ckpt});
    const std::string below = run_ + "/checkpoints/" + fs::path(writer->dir()).filename().string();
    scratch_.Write(below + "/trainer/m.bin",
                   std::string(100'000, static_cast<char>('a' + commit.step.value)));
    scratch_.Write(below + "/model/config.json", "{}");
    storage::Manifest manifest;
    manifest.run_id = "sim";
    manifest.ckpt = commit.ckpt;
    manifest.cut = commit.cut;
    return *writer->Commit(manifest, {"model/config.json", "trainer/m.bin"});
  }
  [[nodiscard]] std::string Step(size_t i) const {
    return run_ + "/checkpoints/step_" + std::to_string(steps_[i]);
  }

  ScratchFolder scratch_;
  RealFileSystem real_;
  const std::string run_ = "runs/sim-20260101T000000Z";
  std::vector<int64_t> steps_;  // of the checkpoints that are left, ascending
};

TEST_F(PruneTest, KeepsTheNewestCheckpointAndTheRunStaysWhatItWas) {
  scratch_.Write(run_ + "/checkpoints/step_9.1-7.tmp/model/x", std::string(5000, 'x'));
  scratch_.Write(run_ + "/checkpoints/step_4/manifest.json", "of an undone branch");
  scratch_.Write(run_ + "/final.tmp-1-1/x", "x");
  scratch_.Write(run_ + "/offload/device-0-inc1/m.bin", std::string(5000, 'x'));
  scratch_.Write(run_ + "/samples/step_1.jsonl", "{}");

  const CliResult dry = RunCli({"prune", "sim", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_NE(dry.out.find("would be freed; nothing was removed"), std::string::npos) << dry.out;
  for (const std::string& path : {Step(0), run_ + "/offload", run_ + "/final.tmp-1-1"}) {
    EXPECT_TRUE(fs::exists(path)) << path;
    EXPECT_NE(dry.out.find(fs::relative(path, run_).string()), std::string::npos) << dry.out;
  }

  const CliResult r = RunCli({"prune", "sim", "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_GE(j[0]["freed_bytes"], 110'000) << r.out;
  EXPECT_EQ(j[0]["stays"], json::array({"checkpoints/step_" + std::to_string(steps_[1])}));
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(run_ + "/checkpoints"))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, std::set<std::string>{"step_" + std::to_string(steps_[1])});
  EXPECT_FALSE(fs::exists(run_ + "/offload"));
  EXPECT_FALSE(fs::exists(run_ + "/final.tmp-1-1"));
  EXPECT_TRUE(fs::exists(run_ + "/samples/step_1.jsonl")) << "was not asked for";

  // The checker looks at what is left, and the run is as finished and as resumable as before.
  const CliResult check = RunCli({"check", "sim"});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_EQ(json::parse(RunCli({"status", "sim", "--json"}).out)["state"], "finished");
  EXPECT_EQ(storage::ReadRunOnDisk(real_, run_)->checkpoints, 1);
  EXPECT_FALSE(storage::ReadRunOnDisk(real_, run_)->OnlyFinal());
  EXPECT_EQ(RunCli({"journal", "sim", "--follow"}).exit_code, 0) << "it ends where the run did";
  EXPECT_NE(RunCli({"prune", "sim"}).out.find("nothing to remove"), std::string::npos);
}

// What a journal that was cut does not name may be the best that there is.
TEST_F(PruneTest, JournalWithoutItsEndCondemnsNoCheckpoint) {
  scratch_.Write(run_ + "/checkpoints/step_99/manifest.json", "of a record that was lost");
  scratch_.Write(run_ + "/summary.json", R"({"exit":0,"finished":true,"steps":99})");
  const std::string segment = run_ + "/journal/0000.tpj";
  fs::resize_file(segment, fs::file_size(segment) - 20);
  const CliResult r = RunCli({"prune", "sim"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("stays      checkpoints/step_99 (the journal does not name it"), std::string::npos)
      << r.out;
  EXPECT_TRUE(fs::exists(run_ + "/checkpoints/step_99"));
  fs::remove(run_ + "/summary.json");  // it was killed: then it is what a try has left
  EXPECT_EQ(RunCli({"prune", "sim"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(run_ + "/checkpoints/step_99"));
}

TEST_F(PruneTest, LiveRunIsRefusedAndTheOthersArePruned) {
  const auto lock = storage::LockRun(real_, run_);
  ASSERT_TRUE(lock.ok());
  scratch_.Write("runs/other/config.yaml", "name: other\n");
  scratch_.Write("runs/other/samples/step_1.jsonl", "{}");
  const CliResult r = RunCli({"prune", "sim", "other", "--samples"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("locked by controller pid"), std::string::npos) << r.err;
  EXPECT_TRUE(fs::exists(Step(0)));
  EXPECT_FALSE(fs::exists("runs/other/samples"));
}

TEST_F(PruneTest, WhoOnlyLooksWritesNothingSoItMayLookAtAReadOnlyDisk) {
  fs::remove(run_ + "/lock");
  const CliResult r = RunCli({"prune", "sim", "--dry-run"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("would be freed"), std::string::npos) << r.out;
  EXPECT_FALSE(fs::exists(run_ + "/lock"));
  const auto lock = real_.Lock(run_ + "/lock", "controller pid 12 on host a");
  ASSERT_TRUE(lock.ok());
  EXPECT_NE(RunCli({"prune", "sim", "--dry-run"}).err.find("locked by controller pid 12"), std::string::npos);
}

TEST_F(PruneTest, NothingGoesWhereTheNewestCheckpointIsDamaged) {
  fs::resize_file(Step(1) + "/trainer/m.bin", 10);
  const CliResult r = RunCli({"prune", "sim"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("nothing was removed: the newest checkpoint does not verify"), std::string::npos)
      << r.err;
  EXPECT_TRUE(fs::exists(Step(0)));
}

TEST_F(PruneTest, FinalOnlyNeedsAFinalModelAndLeavesNoCheckpoint) {
  CliResult r = RunCli({"prune", "sim", "--final-only"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("it has no final/"), std::string::npos) << r.err;
  scratch_.Write(run_ + "/final/config.json", "{}");
  r = RunCli({"prune", "sim", "--final-only"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(fs::is_empty(run_ + "/checkpoints"));
  EXPECT_TRUE(fs::exists(run_ + "/final/config.json"));
  EXPECT_EQ(RunCli({"check", "sim"}).exit_code, 0);
  EXPECT_TRUE(storage::ReadRunOnDisk(real_, run_)->OnlyFinal());
}

TEST_F(PruneTest, FileWithAnotherNameThatStaysFreesNothing) {
  fs::remove(Step(0) + "/trainer/m.bin");
  fs::create_hard_link(Step(1) + "/trainer/m.bin", Step(0) + "/trainer/m.bin");
  const json j = json::parse(RunCli({"prune", "sim", "--json"}).out);
  EXPECT_LT(j[0]["freed_bytes"], 100'000);
  EXPECT_EQ(fs::file_size(Step(1) + "/trainer/m.bin"), 100'000U);
}

// On a full disk there is no room for the record of the checkpoints until something else has gone.
TEST_F(PruneTest, WhatNeedsNoRecordGoesFirst) {
  scratch_.Write(run_ + "/final.tmp-1-1/x", "x");
  scratch_.Write(run_ + "/samples/step_1.jsonl", "{}");
  const auto in_the_way = real_.Lock(run_ + "/journal/lock", "a test");
  const CliResult r = RunCli({"prune", "sim", "--samples"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("a test"), std::string::npos) << r.err;
  EXPECT_TRUE(fs::exists(Step(0)));
  EXPECT_FALSE(fs::exists(run_ + "/samples"));
  EXPECT_FALSE(fs::exists(run_ + "/final.tmp-1-1"));
}

TEST_F(PruneTest, AModelThatLostItsNameGetsItBack) {
  scratch_.Write(run_ + "/best.old/config.json", "{}");
  scratch_.Write(run_ + "/final/config.json", "{}");
  scratch_.Write(run_ + "/final.old/config.json", "old");
  EXPECT_EQ(RunCli({"prune", "sim"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(run_ + "/best/config.json"));
  EXPECT_FALSE(fs::exists(run_ + "/best.old"));
  EXPECT_EQ(fs::file_size(run_ + "/final/config.json"), 2U);
  EXPECT_FALSE(fs::exists(run_ + "/final.old"));
}

// An earlier prune was killed between the record and the removal.
TEST_F(PruneTest, WhatAnInterruptedPruneLeftGoesWithTheNext) {
  {
    auto journal = *storage::JournalWriter::Open(real_, run_ + "/journal", "");
    journal->Append(record::CheckpointDelete{1}, 0);
    ASSERT_TRUE(journal->Close().ok());
  }
  fs::rename(Step(0), Step(0) + ".removed.tmp");
  EXPECT_EQ(RunCli({"check", "sim"}).exit_code, 0);
  EXPECT_EQ(RunCli({"prune", "sim"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(Step(0) + ".removed.tmp"));
}

}  // namespace
}  // namespace tidepool::workers
