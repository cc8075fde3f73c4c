// A store that does not answer: what is to be removed from it keeps no checkpoint from being written. And
// checkpoints that several write.
#include "workers/controller/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/storage/checkpoint.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::workers {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
namespace cmd = scheduler::command;

// What is mounted at /hangs does not answer: no call comes back.
class HangingFileSystem : public MemoryFileSystem {
 public:
  StatusOr<FileInfo> Stat(const std::string& path) override {
    // waits: the test lets it go at its end
    if (path.starts_with("/hangs")) comes_back.wait(false);
    return MemoryFileSystem::Stat(path);
  }
  void ComeBack() {
    comes_back = true;
    comes_back.notify_all();
  }

 private:
  std::atomic<bool> comes_back = false;
};

class CheckpointsTest : public testing::Test {
 protected:
  CheckpointsTest() : fs_(std::make_shared<HangingFileSystem>()) {
    for (const char* dir : {"/run", "/run/checkpoints", "/run/payload", "/hangs"})
      EXPECT_TRUE(fs_->MakeDirectory(dir).ok());
  }
  ~CheckpointsTest() override { fs_->ComeBack(); }

  void Open(double timeout_s = 60) {
    Checkpoints::Owner owner{.run_dir = "/run", .run_id = "run-a", .config_digest = "", .data_identity = ""};
    owner.store.timeout_s = timeout_s;
    Checkpoints::Ends ends;
    ends.post = [this](std::function<void()> call) {
      const MutexLock lock(mu_);
      posted_.push_back(std::move(call));
      came_.NotifyAll();
    };
    ends.feed = [this](const scheduler::Event& e) {
      ++fed_;
      if (const auto* written = std::get_if<scheduler::event::CheckpointWritten>(&e)) written_ = *written;
      if (const auto* failed = std::get_if<scheduler::event::CheckpointFailed>(&e)) failed_ = failed->why;
    };
    ends.send = [this](const WorkerRef&, const ToWorkerBody& body) {
      const auto* write = std::get_if<down::WriteCheckpoint>(&body);
      if (write == nullptr) return;
      folders_.push_back(write->dir);
      parts_.push_back(write->part);
    };
    ends.warn = [this](const std::string& text) { warned_.push_back(text); };
    ends.took = [](double) {};
    ends.needed_of_payload = [] { return std::pair(storage::FirstFiles(), int64_t{0}); };
    checkpoints_ = std::make_unique<Checkpoints>(fs_, std::move(owner), std::move(ends));
    ASSERT_TRUE(checkpoints_->Open().ok());
  }
  // Takes the loop's part until `done`.
  bool Loop(const std::function<bool()>& done, seconds patience = seconds(10)) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!done() && std::chrono::steady_clock::now() < until) {
      std::vector<std::function<void()>> calls;
      {
        const MutexLock lock(mu_);
        if (posted_.empty()) came_.WaitFor(mu_, std::chrono::milliseconds(20));
        calls.swap(posted_);
      }
      for (auto& call : calls) call();
    }
    return done();
  }
  void MakeFolder(const std::string& name, const std::string& store) {
    ASSERT_TRUE(fs_->MakeDirectory(kDir + name).ok());
    ASSERT_TRUE(storage::WriteStorePlace(*fs_, kDir + name, {.store = store, .below = "run/" + name}).ok());
  }
  bool Writes(int64_t step) {
    const size_t before = folders_.size();
    checkpoints_->Write(cmd::WriteCheckpoint{.ckpt = step, .step = {step}});
    return Loop([&] { return folders_.size() > before; });
  }

  const std::string kDir = "/run/checkpoints/";
  const std::shared_ptr<HangingFileSystem> fs_;
  Mutex mu_;
  Condition came_;
  std::vector<std::function<void()>> posted_ TP_GUARDED_BY(mu_);
  std::vector<std::string> folders_, warned_;
  std::vector<bool> parts_;  // of the folders
  std::optional<scheduler::event::CheckpointWritten> written_;
  std::string failed_;
  int fed_ = 0;
  std::unique_ptr<Checkpoints> checkpoints_;
};

// Slots that share the optimizer's state all write; what they wrote is one checkpoint, or none.
TEST_F(CheckpointsTest, ACheckpointOfSeveralIsCommittedOnceAllHaveWritten) {
  Open();
  const auto begin = [&](int64_t ckpt) {
    folders_.clear(), parts_.clear();
    const SlotRef others[] = {{{{1}, {1}}, {1}}, {{{2}, {1}}, {2}}};
    checkpoints_->Write(
        cmd::WriteCheckpoint{.ckpt = ckpt, .step = {ckpt}, .others = {std::begin(others), std::end(others)}});
    ASSERT_TRUE(Loop([&] { return folders_.size() == 3; }));
    EXPECT_THAT(parts_, ElementsAre(false, true, true));
    for (const std::string& folder : folders_) EXPECT_EQ(folder, folders_[0]);
    for (const char* name : {"/model", "/trainer"}) ASSERT_TRUE(fs_->MakeDirectory(folders_[0] + name).ok());
    for (const char* name : {"/model/model.safetensors", "/trainer/m.0-64.bin", "/trainer/m.64-128.bin"})
      ASSERT_TRUE(fs_->WriteFile(folders_[0] + name, name).ok());
  };
  const auto say = [&](int64_t ckpt, std::vector<std::string> files, const std::string& error = "",
                       uint64_t digest = 7) {
    checkpoints_->Commit({.ckpt = ckpt, .files = std::move(files), .error = error, .weights_digest = digest},
                         Lsn{1});
  };
  begin(1);
  say(1, {"trainer/m.64-128.bin"});
  say(1, {"model/model.safetensors", "trainer/m.0-64.bin"});
  EXPECT_FALSE(Loop([&] { return written_ || !failed_.empty(); }, seconds(0)));
  say(1, {});
  ASSERT_TRUE(Loop([&] { return written_.has_value(); })) << failed_;
  EXPECT_EQ(written_->weights_digest, 7U);
  const auto found = storage::FindCheckpoint(*fs_, kDir + "step_1", written_->manifest_digest);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->files.size(), 3U);

  begin(2);  // one fails: the others are waited for, for they write into the folder
  say(2, {}, "disk full");
  say(2, {"trainer/m.64-128.bin"});
  EXPECT_TRUE(failed_.empty());
  say(2, {"model/model.safetensors", "trainer/m.0-64.bin"});
  EXPECT_EQ(failed_, "disk full");

  begin(3);
  for (const uint64_t digest : {7, 7, 8}) say(3, {"model/model.safetensors"}, "", digest);
  EXPECT_EQ(failed_, "the workers that share the optimizer's state have different weights");
}

TEST_F(CheckpointsTest, WhatEarlierTriesLeftInAStoreThatHangsKeepsNoCheckpointFromBeingWritten) {
  MakeFolder("step_3.1-1.tmp", "/hangs");
  MakeFolder("step_4.old", "/hangs");
  ASSERT_TRUE(fs_->MakeDirectory(kDir + "step_4").ok());
  ASSERT_TRUE(fs_->MakeDirectory(kDir + "step_5.1-2.tmp").ok());
  const auto begin = std::chrono::steady_clock::now();
  Open();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  EXPECT_FALSE(fs_->Exists(kDir + "step_5.1-2.tmp")) << "it has nothing in a store";
  EXPECT_FALSE(fs_->Exists(kDir + "step_4.old")) << "the next checkpoint of that step needs this name";
  EXPECT_TRUE(Writes(6));
  EXPECT_TRUE(Loop([&] {  // its thread may have to begin first
    const auto busy = checkpoints_->Busy();
    return busy &&
           busy->name.find("removal of checkpoints/step_3.1-1.tmp from its store") != std::string::npos;
  }));
  fs_->ComeBack();
  EXPECT_TRUE(Loop(
      [&] { return !fs_->Exists(kDir + "step_3.1-1.tmp") && !fs_->Exists(kDir + "step_4.removed.tmp"); }));
}

TEST_F(CheckpointsTest, AStoreThatIsSlowerThanCheckpointsComeKeepsSomeForTheNextStart) {
  Open();
  for (int i = 1; i <= 66; ++i) {
    MakeFolder("step_" + std::to_string(i), "/hangs");
    checkpoints_->Delete(cmd::DeleteCheckpoint{.step = {i}});
  }
  EXPECT_TRUE(Loop([&] { return warned_.size() == 2; }));
  ASSERT_EQ(warned_.size(), 2U);
  EXPECT_THAT(warned_[0], AllOf(HasSubstr("step_65.removed.tmp and its files in the store stay"),
                                HasSubstr("64 removals wait for the store already")));
  // The end waits once for all that is under way.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(checkpoints_->Drain(std::chrono::milliseconds(300)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(550));
  fs_->ComeBack();
  EXPECT_TRUE(Loop([&] { return !fs_->Exists(kDir + "step_64.removed.tmp"); }));
  EXPECT_TRUE(fs_->Exists(kDir + "step_65.removed.tmp"));
}

TEST_F(CheckpointsTest, ACheckpointThatIsRemovedFromAStoreThatHangsStaysAfterADeadlineAndKeepsNothingUp) {
  Open(/*timeout_s=*/0.1);
  for (const char* name : {"step_1", "step_2", "step_3"}) MakeFolder(name, "/hangs");
  ASSERT_TRUE(fs_->MakeDirectory(kDir + "step_4").ok());
  checkpoints_->Delete(cmd::DeleteCheckpoint{.step = {1}});
  EXPECT_TRUE(Loop([&] { return checkpoints_->Busy() && checkpoints_->Busy()->takes > seconds(1); }));
  EXPECT_FALSE(fs_->Exists(kDir + "step_1")) << "it can be written anew";
  checkpoints_->Delete(cmd::DeleteCheckpoint{.step = {2}});
  EXPECT_TRUE(Loop([&] { return !warned_.empty(); }));
  ASSERT_EQ(warned_.size(), 1U);
  EXPECT_THAT(warned_[0],
              AllOf(HasSubstr("step_2.removed.tmp and its files in the store stay, for the next start"),
                    HasSubstr("removal of checkpoints/step_1.removed.tmp from its store has not ended")));
  checkpoints_->Delete(cmd::DeleteCheckpoint{.step = {4}});
  EXPECT_TRUE(Loop([&] { return !fs_->Exists(kDir + "step_4"); })) << "of the run's own disk";
  EXPECT_TRUE(Writes(5));
  // The next life finds what is left.
  fs_->ComeBack();
  checkpoints_.reset();
  Open();
  EXPECT_TRUE(Loop([&] { return !fs_->Exists(kDir + "step_2.removed.tmp"); }));
  EXPECT_TRUE(fs_->Exists(kDir + "step_3"));
}

}  // namespace
}  // namespace tidepool::workers
