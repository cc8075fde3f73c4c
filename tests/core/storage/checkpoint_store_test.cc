// Both kinds of store by the same cases. Those of S3 are run where TIDEPOOL_TEST_S3 names the endpoint of one
// that has the bucket "tests" (tests/runs/store_test.py starts it).
#include "core/storage/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "core/base/real_file_system.h"
#include "core/base/rng.h"
#include "core/storage/checkpoint.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

bool Always() { return true; }

std::string Noise(uint64_t seed, int64_t bytes) {
  Rng rng(seed);
  std::string noise;
  while (static_cast<int64_t>(noise.size()) < bytes) noise.push_back(static_cast<char>(rng.Next()));
  return noise;
}

enum class Kind { kDirectory, kS3 };

class CheckpointStoreTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/tidepool_store_XXXXXX";
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    root_ += "/store";
    ASSERT_TRUE(fs_.MakeDirectories(root_).ok());
    checkpoints_ = ParentPath(root_) + "/run/checkpoints";
    const char* endpoint = std::getenv("TIDEPOOL_TEST_S3");
    if (GetParam() == Kind::kDirectory) {
      at_.store = root_;
    } else if (endpoint != nullptr) {
      at_ = {.store = "s3://tests/a/prefix", .below = "", .endpoint = endpoint, .region = "us-east-1"};
      at_.timeout_s = 3;
    } else {
      GTEST_SKIP() << "no S3 here; tests/runs/store_test.py has one";
    }
    at_ = NewPlace(at_, "run");
  }
  void TearDown() override { (void)fs_.RemoveTree(ParentPath(root_)); }

  std::unique_ptr<CheckpointStore> Open(const StorePlace& place) {
    auto store = OpenStore(fs_, place);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return std::move(store).value();
  }
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = ParentPath(root_) + "/staged/" + name;
    EXPECT_TRUE(fs_.MakeDirectories(ParentPath(path)).ok());
    EXPECT_TRUE(fs_.WriteFile(path, bytes).ok());
    return path;
  }
  // As a controller and a trainer do it together.
  StatusOr<uint64_t> WriteCheckpoint(int64_t step, const std::string& weights) {
    static int64_t tries = 0;
    TP_ASSIGN_OR_RETURN(const auto writer,
                        CheckpointWriter::Begin(fs_, checkpoints_, {{step}, 1, ++tries}, at_));
    TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(fs_, writer->dir()));
    TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs_, *place));
    Write("model/weights", weights);
    Write("model/empty", "");
    Write("state", "of step " + std::to_string(step));
    TP_ASSIGN_OR_RETURN(auto put, PutFiles(*store, fs_, ParentPath(root_) + "/staged",
                                           {"model/weights", "model/empty", "state"}, Always));
    return writer->CommitStored({.ckpt = step}, std::move(put));
  }

  RealFileSystem fs_;
  std::string root_, checkpoints_;
  StorePlace at_;  // of the run
};

TEST_P(CheckpointStoreTest, KeepsListsAndRemovesObjects) {
  const auto store = Open(at_.Below("step_1.1-1")), other = Open(at_.Below("step_10.1-2"));
  const std::string large = Noise(1, 12 << 20);  // several parts
  ASSERT_TRUE(store->Put(Write("b", large), "model/b", Always).ok());
  ASSERT_TRUE(store->Put(Write("a", "bytes of a"), "a", Always).ok());
  ASSERT_TRUE(other->Put(Write("c", "bytes of c"), "c", Always).ok());
  const auto listed = store->List();
  ASSERT_TRUE(listed.ok()) << listed.status().ToString();
  ASSERT_EQ(listed->size(), 2U);
  EXPECT_EQ((*listed)[0].key, "a");
  EXPECT_EQ((*listed)[0].bytes, 10);
  EXPECT_EQ((*listed)[1].key, "model/b");
  EXPECT_EQ((*listed)[1].bytes, 12 << 20);
  std::string read;
  ASSERT_TRUE(store
                  ->Read("model/b",
                         [&](std::string_view piece) {
                           EXPECT_LE(piece.size(), size_t{8} << 20);
                           read += piece;
                           return OkStatus();
                         })
                  .ok());
  EXPECT_EQ(read, large);
  ASSERT_TRUE(store->RemoveAll().ok());
  EXPECT_TRUE(store->List()->empty());
  EXPECT_TRUE(store->RemoveAll().ok());  // nothing is there any more
  EXPECT_EQ(other->List()->size(), 1U);
  EXPECT_TRUE(other->RemoveAll().ok());
}

TEST_P(CheckpointStoreTest, NamesWhatIsNotThere) {
  const auto store = Open(at_.Below("step_1.1-1"));
  const Status read = store->Read("model/a", [](std::string_view) { return OkStatus(); });
  EXPECT_EQ(read.code(), StatusCode::kNotFound) << read.ToString();
  EXPECT_THAT(read.message(), AllOf(HasSubstr("host "), HasSubstr("checkpoint.store"), HasSubstr("model/a")));
}

TEST_P(CheckpointStoreTest, AnUploadThatIsCalledOffLeavesNoObject) {
  const auto store = Open(at_.Below("step_1.1-1"));
  const std::string path = Write("a", Noise(2, 20 << 20));
  int asked = 0;
  if (GetParam() == Kind::kDirectory) return;  // a file that is on the same disk is there at once
  const Status put = store->Put(path, "a", [&] { return ++asked < 3; });
  EXPECT_EQ(put.code(), StatusCode::kCancelled) << put.ToString();
  EXPECT_TRUE(store->List()->empty());
}

TEST_P(CheckpointStoreTest, ACheckpointIsCommittedReadFetchedAndRemoved) {
  const std::string weights = Noise(3, 3 << 20);
  const auto digest = WriteCheckpoint(20, weights);
  ASSERT_TRUE(digest.ok()) << digest.status().ToString();
  const std::string dir = checkpoints_ + "/step_20";
  ASSERT_EQ(ListCheckpoints(fs_, checkpoints_)->size(), 1U);
  EXPECT_THAT(*fs_.List(dir), ElementsAre(kManifestName, kStorePlaceName));  // none of the files
  EXPECT_EQ(CheckpointBytes(fs_, dir), (3 << 20) + 10);
  for (const auto& read : {FindCheckpoint(fs_, dir, *digest), VerifyCheckpoint(fs_, dir, *digest)}) {
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read->files.size(), 3U);
  }
  const std::string to = ParentPath(root_) + "/fetched";
  const auto folder = FolderWithFiles(fs_, dir, "model/", to, Always);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  EXPECT_EQ(*fs_.ReadFile(*folder + "/model/weights"), weights);
  EXPECT_TRUE(fs_.Exists(*folder + "/model/empty"));
  ASSERT_TRUE(RemoveCheckpoint(fs_, checkpoints_, {20}).ok());
  EXPECT_TRUE(Open(at_)->List()->empty());
  EXPECT_TRUE(fs_.List(checkpoints_)->empty());
}

TEST_P(CheckpointStoreTest, ACheckpointIsReadWhereItIsAlsoOfAnotherStore) {
  ASSERT_TRUE(WriteCheckpoint(20, "weights").ok());
  at_ = NewPlace({.store = root_ + "/another"}, "run");
  ASSERT_TRUE(fs_.MakeDirectories(at_.store).ok());
  ASSERT_TRUE(WriteCheckpoint(40, "newer weights").ok());
  for (const char* step : {"/step_20", "/step_40"})
    EXPECT_TRUE(VerifyCheckpoint(fs_, checkpoints_ + step, std::nullopt).ok());
}

TEST_P(CheckpointStoreTest, ADamagedOrMissingObjectIsNamed) {
  const auto digest = WriteCheckpoint(20, "weights");
  ASSERT_TRUE(digest.ok());
  const std::string dir = checkpoints_ + "/step_20";
  const auto store = Open((*ReadStorePlace(fs_, dir)).value());
  ASSERT_TRUE(store->Put(Write("x", "WEIGHTS"), "model/weights", Always).ok());
  EXPECT_TRUE(FindCheckpoint(fs_, dir, *digest).ok());  // the sizes are right
  for (const Status& damaged :
       {VerifyCheckpoint(fs_, dir, *digest).status(),
        FolderWithFiles(fs_, dir, "", ParentPath(root_) + "/fetched", Always).status()}) {
    EXPECT_EQ(damaged.code(), StatusCode::kDataLoss) << damaged.ToString();
    EXPECT_THAT(damaged.message(), AllOf(HasSubstr("step_20"), HasSubstr("model/weights")));
  }
  ASSERT_TRUE(store->Put(Write("x", "longer weights"), "model/weights", Always).ok());
  EXPECT_EQ(FindCheckpoint(fs_, dir, *digest).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(store->RemoveAll().ok());
  const Status missing = FindCheckpoint(fs_, dir, *digest).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("step_20"));
}

TEST_P(CheckpointStoreTest, WhatATryThatDidNotEndPutThereIsRemoved) {
  {
    const auto writer = CheckpointWriter::Begin(fs_, checkpoints_, {{7}, 1, 1000}, at_);
    ASSERT_TRUE(writer.ok());
    const auto store = Open((*ReadStorePlace(fs_, (*writer)->dir())).value());
    ASSERT_TRUE(store->Put(Write("a", "bytes"), "model/a", Always).ok());
  }
  ASSERT_EQ(Open(at_)->List()->size(), 1U);
  EXPECT_EQ(RemoveLeftovers(fs_, checkpoints_)->handled, 1);
  EXPECT_TRUE(Open(at_)->List()->empty());
  EXPECT_TRUE(fs_.List(checkpoints_)->empty());
}

TEST_P(CheckpointStoreTest, AStoreIsTriedBeforeARunDependsOnIt) {
  ASSERT_TRUE(fs_.MakeDirectories(checkpoints_).ok());
  const auto disk = std::make_shared<RealFileSystem>();
  EXPECT_TRUE(TryStore(disk, at_, checkpoints_).ok());
  EXPECT_TRUE(Open(at_)->List()->empty());
  EXPECT_TRUE(fs_.List(checkpoints_)->empty());
  StorePlace wrong = at_;
  wrong.store = GetParam() == Kind::kDirectory ? root_ + "/not_mounted" : "s3://no-such-bucket";
  const Status tried = TryStore(disk, wrong, checkpoints_);
  EXPECT_EQ(tried.code(), StatusCode::kFailedPrecondition) << tried.ToString();
  const Status read = Open(wrong)->Read("object", [](std::string_view) { return OkStatus(); });
  EXPECT_TRUE(IsOfStore(read)) << read.ToString();  // nothing is known of the object
  EXPECT_THAT(tried.message(), AllOf(HasSubstr("host "), HasSubstr(wrong.store), HasSubstr("make it")));
}

// Each object is read once before it is there, and once after.
TEST_P(CheckpointStoreTest, WhatIsReadBackIsCalledOffBetweenPieces) {
  const auto store = Open(at_.Below("step_1.1-1"));
  Write("a", Noise(4, 20 << 20));
  const std::string staged = ParentPath(root_) + "/staged";
  // Up to its last piece, so that it is in the store in the end.
  int64_t all = 0;
  ASSERT_TRUE(PutFiles(*store, fs_, staged, {"a"}, [&] { return ++all > 0; }).ok());
  EXPECT_GT(all, 10);
  for (const int64_t last : {all - 1, int64_t{3}}) {
    Write("a", Noise(4, 20 << 20));
    int64_t asked = 0;
    const auto put = PutFiles(*store, fs_, staged, {"a"}, [&] { return ++asked < last; });
    EXPECT_EQ(put.status().code(), StatusCode::kCancelled) << put.status().ToString();
    EXPECT_EQ(asked, last);
  }
  EXPECT_TRUE(store->RemoveAll().ok());
}

TEST_P(CheckpointStoreTest, StagingOfOthersThatLiveStays) {
  const std::string folder = ParentPath(root_) + "/disk";
  ASSERT_TRUE(fs_.MakeDirectories(folder).ok());
  const StorePlace place = at_.Below("step_1.1-1");
  // A copy of the run's folder is at the same checkpoint, and a run's id may begin with that of another.
  auto first = MakeStaging(fs_, folder, "", place);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  ASSERT_TRUE(fs_.WriteFile(first->dir + "/weights", "weights").ok());
  const std::string other = folder + "/tidepool-run-b-01234567-step_1.1-1";
  ASSERT_TRUE(fs_.MakeDirectories(other).ok());
  {
    const auto second = MakeStaging(fs_, folder, "", place);
    ASSERT_TRUE(second.ok()) << second.status().ToString();
    EXPECT_NE(second->dir, first->dir);
    EXPECT_EQ(*fs_.ReadFile(first->dir + "/weights"), "weights");
    EXPECT_EQ(fs_.List(folder)->size(), 3U);
  }
  // Who died has left its own.
  const auto third = MakeStaging(fs_, folder, "", place);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(fs_.List(folder)->size(), 3U);
  first->lock.reset();
  const auto fourth = MakeStaging(fs_, folder, "", place);
  ASSERT_TRUE(fourth.ok());
  EXPECT_FALSE(fs_.Exists(first->dir));
  EXPECT_TRUE(fs_.Exists(third->dir));
  EXPECT_TRUE(fs_.Exists(other));
}

INSTANTIATE_TEST_SUITE_P(Directory, CheckpointStoreTest, testing::Values(Kind::kDirectory));
INSTANTIATE_TEST_SUITE_P(S3, CheckpointStoreTest, testing::Values(Kind::kS3));

TEST(DirectoryStoreTest, AFullOrReadOnlyDirectoryIsNamedWithHostAndRemedy) {
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.MakeDirectories("/shared").ok());
  ASSERT_TRUE(memory.WriteFile("/a", "bytes").ok());
  const auto store = MakeDirectoryStore(memory, {.store = "/shared", .below = "run/step_1.1-1"});
  for (const int error : {ENOSPC, EROFS}) {
    memory.SetFaults({.fail_operation = 0, .fail_errno = error});
    const Status put = store->Put("/a", "model/a", Always);
    EXPECT_FALSE(put.ok());
    EXPECT_THAT(put.message(), AllOf(HasSubstr("host "), HasSubstr("checkpoint.store /shared"),
                                     HasSubstr("a folder on another disk")));
  }
  EXPECT_TRUE(store->List()->empty());
  EXPECT_TRUE(memory.Exists("/a"));  // nothing is lost
}

// A power cut at any operation: what is called a checkpoint afterwards is whole, and the store holds nothing
// that no folder of the run names.
TEST(DirectoryStoreTest, APowerCutLeavesNothingInTheStoreThatNobodyKnowsOf) {
  int64_t cuts = 0, whole = 0;
  for (int64_t at = 0;; ++at, ++cuts) {
    MemoryFileSystem memory({.seed = static_cast<uint64_t>(at)});
    for (const char* dir : {"/shared", "/staged", "/run"}) ASSERT_TRUE(memory.MakeDirectories(dir).ok());
    ASSERT_TRUE(memory.WriteFile("/staged/weights", "weights").ok());
    memory.SetFaults({.seed = static_cast<uint64_t>(at), .crash_at_operation = at});
    const auto write = [&]() -> Status {
      TP_ASSIGN_OR_RETURN(const auto writer, CheckpointWriter::Begin(memory, "/run/checkpoints", {{1}, 1, 1},
                                                                     NewPlace({.store = "/shared"}, "run")));
      TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(memory, writer->dir()));
      TP_ASSIGN_OR_RETURN(const auto store, OpenStore(memory, *place));
      TP_ASSIGN_OR_RETURN(auto put, PutFiles(*store, memory, "/staged", {"weights"}, Always));
      return writer->CommitStored({.ckpt = 1}, std::move(put)).status();
    };
    const bool committed = write().ok();
    if (!memory.crashed()) break;
    EXPECT_FALSE(committed);
    memory.Crash();
    memory.SetFaults({});
    ASSERT_TRUE(RemoveLeftovers(memory, "/run/checkpoints").ok());
    const auto steps = ListCheckpoints(memory, "/run/checkpoints");
    ASSERT_TRUE(steps.ok());
    for (const StepNumber step : *steps) {
      const Status verified =
          VerifyCheckpoint(memory, "/run/checkpoints/" + CheckpointName(step), std::nullopt).status();
      EXPECT_TRUE(verified.ok()) << "cut at " << at << ": " << verified.ToString();
      ++whole;
    }
    EXPECT_EQ(memory.ListTree("/shared")->size(), steps->size()) << "cut at " << at;
  }
  EXPECT_GT(cuts, 15);
  EXPECT_GT(whole, 0);
}

class UnreadableFileSystem : public MemoryFileSystem {
 public:
  StatusOr<FileInfo> Stat(const std::string& path) override {
    if (unreadable && path.ends_with(kStorePlaceName)) return FileError(EACCES, "read the size", path);
    return MemoryFileSystem::Stat(path);
  }
  bool unreadable = false;
};

// One that cannot be looked at is not the same as no store.
TEST(DirectoryStoreTest, APlaceThatCannotBeReadIsAnError) {
  UnreadableFileSystem memory;
  ASSERT_TRUE(memory.MakeDirectories("/run/checkpoints/step_1").ok());
  ASSERT_TRUE(
      WriteStorePlace(memory, "/run/checkpoints/step_1", {.store = "/shared", .below = "run/a"}).ok());
  ASSERT_TRUE(ReadStorePlace(memory, "/run/checkpoints/step_1")->has_value());
  memory.unreadable = true;
  const auto place = ReadStorePlace(memory, "/run/checkpoints/step_1");
  EXPECT_EQ(place.status().code(), StatusCode::kPermissionDenied) << place.status().ToString();
}

TEST(DirectoryStoreTest, WhatStaysInAStoreIsToldToTheOperator) {
  MemoryFileSystem memory;
  const std::string left = "/run/checkpoints/step_1.1-1.tmp";
  ASSERT_TRUE(memory.MakeDirectories(left).ok());
  ASSERT_TRUE(WriteStorePlace(memory, left, {.store = "/not_mounted", .below = "run/step_1.1-1"}).ok());
  const auto leftovers = RemoveLeftovers(memory, "/run/checkpoints");
  ASSERT_TRUE(leftovers.ok());
  EXPECT_EQ(leftovers->handled, 0);
  ASSERT_EQ(leftovers->left.size(), 1U);
  EXPECT_THAT(leftovers->left[0], AllOf(HasSubstr(left), HasSubstr("/not_mounted"), HasSubstr("mount it")));
  EXPECT_TRUE(memory.Exists(left));
}

// What is mounted there does not answer: no call comes back.
class HangingFileSystem : public MemoryFileSystem {
 public:
  StatusOr<FileInfo> Stat(const std::string& path) override {
    if (path.starts_with("/shared")) comes_back.wait(false);
    return MemoryFileSystem::Stat(path);
  }
  std::atomic<bool> comes_back = false;
};

TEST(DirectoryStoreTest, ADirectoryThatHangsIsToldOfWithinItsTime) {
  const auto hanging = std::make_shared<HangingFileSystem>();
  ASSERT_TRUE(hanging->MakeDirectories("/run").ok());
  const auto begin = std::chrono::steady_clock::now();
  const Status tried = TryStore(hanging, {.store = "/shared", .below = "run", .timeout_s = 0.05}, "/run");
  EXPECT_EQ(tried.code(), StatusCode::kUnavailable) << tried.ToString();
  EXPECT_THAT(tried.message(), AllOf(HasSubstr("checkpoint.store /shared"), HasSubstr("reachable")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  hanging->comes_back = true;
  hanging->comes_back.notify_all();
}

// Two disks: a rename is refused, and the bytes are copied.
TEST(DirectoryStoreTest, AFileIsCopiedWhereItCannotBeRenamed) {
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.MakeDirectories("/shared/run/step_1.1-1").ok());
  ASSERT_TRUE(memory.WriteFile("/a", "bytes").ok());
  const auto store = MakeDirectoryStore(memory, {.store = "/shared", .below = "run/step_1.1-1"});
  memory.SetFaults({.fail_operation = 0, .fail_errno = EXDEV});
  ASSERT_TRUE(store->Put("/a", "a", Always).ok());
  EXPECT_EQ(*memory.ReadFile("/shared/run/step_1.1-1/a"), "bytes");
  EXPECT_FALSE(memory.Exists("/a"));
}

// A server that takes connections and says nothing.
TEST(S3StoreTest, AStoreThatDoesNotAnswerIsToldOfWithinItsTime) {
  if (std::getenv("TIDEPOOL_TEST_S3") == nullptr) GTEST_SKIP() << "no S3 here";
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 100), 0);
  socklen_t length = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  StorePlace place{.store = "s3://tests",
                   .below = "run",
                   .endpoint = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                   .region = "us-east-1",
                   .timeout_s = 2};
  for (const bool listens : {true, false}) {
    if (!listens) ::close(listener);
    const auto begin = std::chrono::steady_clock::now();
    RealFileSystem fs;
    const auto store = OpenStore(fs, place);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const Status listed = (*store)->List().status();
    EXPECT_EQ(listed.code(), StatusCode::kUnavailable) << listed.ToString();
    EXPECT_THAT(listed.message(), HasSubstr(place.endpoint));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

}  // namespace
}  // namespace tidepool::storage
