#include "core/observe/pool_history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/observe/report.h"
#include "core/storage/journal.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::observe {
namespace {

class Journal {
 public:
  void Put(double at_s, JournalRecord r, uint32_t epoch = 1) {
    entries.push_back({.lsn = {static_cast<int64_t>(entries.size())},
                       .ctl_epoch = epoch,
                       .mono_ns = static_cast<uint64_t>(at_s * 1e9),
                       .record = std::move(r)});
  }
  std::vector<JournalEntry> entries;
};

// "rollout 1-5" of one slot.
std::vector<std::string> Lane(const PoolHistory& pool, int64_t slot) {
  std::vector<std::string> lane;
  for (const ReadSpan& s : pool.lanes.spans) {
    if (s.worker != slot) continue;
    char text[64];
    std::snprintf(text, sizeof(text), "%s %g-%g", s.category.c_str(), s.start_s, s.start_s + s.duration_s);
    lane.emplace_back(text);
  }
  return lane;
}

using Lanes = std::vector<std::string>;
constexpr SlotId kSlot{0};

TEST(PoolHistoryTest, ASlotGoesToTrainingAndComesBack) {
  Journal j;
  j.Put(1, record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}});
  j.Put(5, record::TransitionBegin{{7}, {{kSlot, Role::kRollout, Role::kActor, {2}}}, 0, "", 0});
  j.Put(6, record::TransitionCommit{{7}});
  j.Put(6, record::Grant{kSlot, Role::kActor, {2}, {{0}, {0}}});
  j.Put(7, record::TransitionDone{{7}});
  j.Put(8, record::StepBegin{{1}, {0, 0}, {{kSlot, Role::kActor, Role::kActor, {2}}}});
  j.Put(10, record::StepCommit{{1}, {0, 1}, 0, {}});
  j.Put(11, record::TransitionBegin{{8}, {{kSlot, Role::kActor, Role::kRollout, {3}}}, 0, "", 0});
  j.Put(12, record::Grant{kSlot, Role::kRollout, {3}, {{0}, {0}}});
  j.Put(13, record::TransitionDone{{8}});
  j.Put(20, record::EndRun{0, "", 1});
  const PoolHistory pool = PoolHistoryOf(j.entries);
  EXPECT_EQ(Lane(pool, 0), (Lanes{"rollout 1-5", "moving 5-7", "actor 7-8", "train 8-10", "actor 10-11",
                                  "moving 11-13", "rollout 13-20"}));
  EXPECT_EQ(pool.steps, std::vector<double>{10});
  EXPECT_EQ(pool.moves, 2);
  EXPECT_EQ(pool.times.at({Role::kRollout, Role::kActor}).release_s, std::vector<double>{1});
  EXPECT_EQ(pool.times.at({Role::kRollout, Role::kActor}).grant_s, std::vector<double>{1});
  RunData run;
  run.pool = pool;
  const nlohmann::json times = ReportData(run)["pool"]["times"];
  ASSERT_EQ(times.size(), 2U) << "the first grants are left out: they wait for processes to start";
  EXPECT_EQ(times[0], nlohmann::json::parse(
                          R"({"from": "rollout", "to": "actor", "done": 1, "rolled_back": 0,
                              "release_s": [1, 1, 1], "grant_s": [1, 1, 1], "whole_s": [2, 2, 2]})"));
  EXPECT_EQ(pool.end_s, 20);
}

// The dashboard sends it every few seconds.
TEST(PoolHistoryTest, WhatIsSentOfALongRunIsNotLonger) {
  Journal j;
  j.Put(1, record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}});
  constexpr int kSteps = 20001;
  for (int step = 1; step <= kSteps; ++step) {
    const double at = 2 * step;
    j.Put(at, record::TransitionBegin{{step}, {{kSlot, Role::kRollout, Role::kActor, {2}}}, 0, "", 0});
    j.Put(at + 0.1, record::TransitionCommit{{step}});
    j.Put(at + 0.1, record::Grant{kSlot, Role::kActor, {2}, {{0}, {0}}});
    j.Put(at + 0.2 + step * 1e-5, record::TransitionDone{{step}});
    j.Put(at + 0.5, record::StepBegin{{step}, {0, 0}, {{kSlot, Role::kActor, Role::kActor, {2}}}});
    j.Put(at + 1, record::StepCommit{{step}, {0, step}, 0, {}});
    j.Put(at + 1.1, record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}});
  }
  const nlohmann::json pool = PoolData(PoolHistoryOf(j.entries));
  EXPECT_EQ(pool["times"][0]["done"], kSteps);
  EXPECT_EQ(pool["times"][0]["grant_s"], nlohmann::json::parse("[0.20001, 0.28001, 0.30001]"));
  EXPECT_LE(pool["steps"].size(), 2000U);
  EXPECT_EQ(pool["steps_every"], 11);
  EXPECT_EQ(pool["steps"][0], 23) << "the end of step 11";
  EXPECT_LT(pool.dump().size(), 500000U);
}

TEST(PoolHistoryTest, ARollBackALossAndAnotherControllerAreShown) {
  Journal j;
  j.Put(1, record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}});
  j.Put(2, record::TransitionBegin{{1}, {{kSlot, Role::kRollout, Role::kActor, {2}}}, 0, "", 0});
  j.Put(3, record::TransitionRolledBack{{1}, "slow", {{kSlot, Role::kRollout, Role::kRollout, {3}}}});
  j.Put(5, record::SlotLost{kSlot, "killed"});
  j.Put(6, record::Grant{kSlot, Role::kRollout, {4}, {{0}, {1}}});
  j.Put(8, record::StepBegin{{1}, {0, 0}, {{{1}, Role::kActor, Role::kActor, {2}}}});
  j.Put(9, record::StepAbort{{1}, "lost"});
  j.Put(1, record::Fence{{{0}, {1}}},
        2);  // its clock begins anew; nothing is known until somebody is granted something
  j.Put(2, record::Grant{kSlot, Role::kActor, {5}, {{0}, {2}}}, 2);
  j.Put(4, record::EndRun{0, "", 1}, 2);
  EXPECT_EQ(PoolHistoryOf(j.entries).times.at({Role::kRollout, Role::kActor}).rolled_back, 1);
  EXPECT_EQ(Lane(PoolHistoryOf(j.entries), 0),
            (Lanes{"rollout 1-2", "moving 2-3", "rollout 3-5", "lost 5-6", "rollout 6-9", "actor 11-13"}));
}

TEST(PoolHistoryTest, ARestoreSaysFromWhereToWhere) {
  Journal j;
  j.Put(8, record::StepCommit{{1}, {0, 1}, 0, {}});
  j.Put(9, record::StepCommit{{2}, {0, 2}, 0, {}});
  j.Put(10, record::Restore{-1, {1}, 0, 1});
  j.Put(2, record::Restore{0, {0}, 1, 2}, /*epoch=*/2);
  RunData run;
  run.pool = PoolHistoryOf(j.entries);
  using nlohmann::json;
  EXPECT_EQ(ReportData(run)["pool"]["restores"],
            json::array({{{"at_s", 10.0}, {"from", 2}, {"to", 1}, {"ckpt", -1}},
                         {{"at_s", 12.0}, {"from", 1}, {"to", 0}, {"ckpt", 0}}}));
}

TEST(PoolHistoryTest, FaultsAreCountedByKind) {
  std::vector<JournalEntry> journal;
  for (const char* kind : {"worker", "payload", "worker"})
    journal.push_back({.ctl_epoch = 1, .record = record::Fault{.kind = kind}});
  EXPECT_EQ(PoolHistoryOf(journal).faults, (std::map<std::string, int64_t>{{"payload", 1}, {"worker", 2}}));
}

// Counts what is read.
class CountedFiles : public MemoryFileSystem {
 public:
  StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    TP_ASSIGN_OR_RETURN(auto file, MemoryFileSystem::OpenForRead(path));
    return std::unique_ptr<ReadableFile>(std::make_unique<Counted>(std::move(file), bytes_read));
  }
  int64_t bytes_read = 0;

 private:
  struct Counted : ReadableFile {
    Counted(std::unique_ptr<ReadableFile> inner, int64_t& count) : file(std::move(inner)), bytes(count) {}
    StatusOr<std::string> ReadAt(int64_t offset, int64_t most) override {
      auto text = file->ReadAt(offset, most);
      if (text.ok()) bytes += static_cast<int64_t>(text->size());
      return text;
    }
    StatusOr<int64_t> Size() override { return file->Size(); }
    std::unique_ptr<ReadableFile> file;
    int64_t& bytes;
  };
};

std::unique_ptr<storage::JournalWriter> OpenJournal(FileSystem& fs) {
  auto writer = storage::JournalWriter::Open(fs, "run/journal", "run", {.segment_bytes = 100'000});
  EXPECT_TRUE(writer.ok()) << writer.status().ToString();
  return *std::move(writer);
}

TEST(PoolFollowerTest, ALookReadsWhatWasAddedAndShowsTheWhole) {
  CountedFiles fs;
  PoolFollower follower(fs, "run");
  EXPECT_EQ(follower.Read().status().code(), StatusCode::kNotFound);
  auto writer = OpenJournal(fs);
  writer->Append(record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}}, 1'000'000'000);
  for (int i = 0; i < 20'000; ++i) writer->Append(record::Dup{.tid = {i, 0, 0}}, 2'000'000'000);
  ASSERT_TRUE(writer->Flush().ok());
  ASSERT_TRUE(follower.Read().ok());
  EXPECT_GT(fs.bytes_read, 500'000);

  for (int step = 1; step <= 3; ++step) {
    writer->Append(record::StepCommit{{step}, {0, step}, 0, {}}, 3'000'000'000);
    ASSERT_TRUE(writer->Flush().ok());
    fs.bytes_read = 0;
    const auto pool = follower.Read();
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    EXPECT_LT(fs.bytes_read, 1000);
    EXPECT_EQ(Lane(*pool, 0), Lanes{"rollout 1-3"});
    EXPECT_EQ(static_cast<int>(pool->steps.size()), step);
  }
  writer.reset();
  writer = OpenJournal(fs);  // another controller, whose clock begins anew
  writer->Append(record::Grant{kSlot, Role::kRollout, {2}, {{0}, {1}}}, 1'000'000'000);
  writer->Append(record::EndRun{0, "", 1}, 5'000'000'000);
  ASSERT_TRUE(writer->Flush().ok());
  EXPECT_EQ(Lane(*follower.Read(), 0), (Lanes{"rollout 1-3", "rollout 4-8"}));

  writer.reset();
  ASSERT_TRUE(fs.Rename("run/journal", "run/old").ok());
  EXPECT_EQ(follower.Read().status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(OpenJournal(fs)->Flush().ok());
  EXPECT_TRUE(follower.Read()->empty()) << "the journal of a run that was begun anew";
}

TEST(PoolFollowerTest, DamageIsSaidAndSoIsThatItIsGone) {
  MemoryFileSystem fs;
  auto writer = OpenJournal(fs);
  for (int i = 0; i < 3; ++i) {
    writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
    ASSERT_TRUE(writer->Sync().ok());
  }
  const std::string file = writer->current_file();
  const int64_t second = fs.Stat(file)->bytes - int64_t{2} * 50;  // a record has 50 bytes
  PoolFollower follower(fs, "run");
  fs.FlipByte(file, second);
  EXPECT_EQ(follower.Read().status().code(), StatusCode::kDataLoss);
  fs.FlipByte(file, second);
  EXPECT_TRUE(follower.Read().ok());
}

TEST(PoolHistoryTest, TheReportShowsTheSlots) {
  RunData run;
  Journal j;
  j.Put(1, record::Grant{kSlot, Role::kRollout, {1}, {{0}, {0}}});
  j.Put(9, record::EndRun{0, "", 1});
  run.pool = PoolHistoryOf(j.entries);
  const nlohmann::json pool = ReportData(run)["pool"];
  EXPECT_EQ(pool["lanes"], nlohmann::json::array({"slot 0"}));
  EXPECT_EQ(pool["categories"], nlohmann::json::array({"rollout"}));
  EXPECT_EQ(pool["spans"], nlohmann::json::parse("[[0, 0, 0, 1.0, 8.0, 1]]"));
  EXPECT_TRUE(ReportData(RunData{})["pool"]["spans"].empty())
      << "a run without a journal has no pool to show";
}

}  // namespace
}  // namespace tidepool::observe
