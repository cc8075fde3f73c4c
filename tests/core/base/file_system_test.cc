#include "core/base/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "core/base/real_file_system.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Both implementations have to behave alike.
class FileSystemTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      fs_ = std::make_unique<RealFileSystem>();
      std::string name = testing::TempDir() + "/tidepool_fs_XXXXXX";
      ASSERT_NE(::mkdtemp(name.data()), nullptr);
      root_ = name;
    } else {
      fs_ = std::make_unique<MemoryFileSystem>();
      root_ = "/m";
      ASSERT_TRUE(fs_->MakeDirectory(root_).ok());
    }
  }
  void TearDown() override { EXPECT_TRUE(fs_->RemoveTree(root_).ok()); }
  [[nodiscard]] std::string Path(const std::string& name) const { return root_ + "/" + name; }

  std::unique_ptr<FileSystem> fs_;
  std::string root_;
};
INSTANTIATE_TEST_SUITE_P(Both, FileSystemTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Real" : "Memory"; });

TEST_P(FileSystemTest, AppendsAndReadsBack) {
  auto file = fs_->CreateNew(Path("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Preallocate(1 << 16).ok());
  EXPECT_EQ((*file)->size(), 0) << "reserving does not change the size";
  ASSERT_TRUE((*file)->Append("hello ").ok());
  ASSERT_TRUE((*file)->Append("world").ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(*fs_->ReadFile(Path("a")), "hello world");
  EXPECT_EQ(*fs_->Size(Path("a")), 11);

  auto reader = fs_->OpenForRead(Path("a"));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(*(*reader)->ReadAt(6, 100), "world");
  EXPECT_EQ(*(*reader)->ReadAt(50, 10), "");
  ASSERT_TRUE((*file)->Append("!").ok());
  EXPECT_EQ(*(*reader)->ReadAt(11, 5), "!") << "a file may grow while it is read";

  ASSERT_TRUE((*file)->Truncate(5).ok());
  file->reset();
  auto again = fs_->OpenForAppend(Path("a"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->size(), 5);
  ASSERT_TRUE((*again)->Append("?").ok());
  EXPECT_EQ(*fs_->ReadFile(Path("a")), "hello?");
}

TEST_P(FileSystemTest, ErrorsNameThePathAndTheCode) {
  EXPECT_EQ(fs_->OpenForRead(Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(fs_->OpenForRead(Path("none")).status().message(), HasSubstr(Path("none")));
  EXPECT_EQ(fs_->List(Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_->MakeDirectory(Path("x/y")).code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_->RemoveFile(Path("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(fs_->Rename(Path("none"), Path("b")).code(), StatusCode::kNotFound);
  ASSERT_TRUE(fs_->MakeDirectory(Path("d")).ok());
  EXPECT_EQ(fs_->MakeDirectory(Path("d")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_->CreateNew(Path("d")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_->OpenForAppend(Path("d")).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fs_->OpenForRead(Path("d")).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(fs_->WriteFile(Path("d/f"), "12345").ok());
  EXPECT_EQ(fs_->RemoveDirectory(Path("d")).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fs_->ReadFile(Path("d/f"), 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(fs_->MakeDirectories(Path("d/f/g")).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(fs_->MakeDirectory(Path("e")).ok());
  EXPECT_EQ(fs_->Rename(Path("e"), Path("d")).code(), StatusCode::kFailedPrecondition)
      << "a folder that is not empty";
}

TEST_P(FileSystemTest, TreesAreMadeListedAndRemoved) {
  ASSERT_TRUE(fs_->MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(fs_->MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(fs_->WriteFile(Path("a/b/c/2"), "x").ok());
  ASSERT_TRUE(fs_->WriteFile(Path("a/1"), "y").ok());
  EXPECT_THAT(*fs_->ListTree(Path("a")), ElementsAre("1", "b/c/2"));
  EXPECT_THAT(*fs_->List(Path("a")), ElementsAre("1", "b"));
  ASSERT_TRUE(fs_->Rename(Path("a/b"), Path("z")).ok());
  EXPECT_EQ(*fs_->ReadFile(Path("z/c/2")), "x");
  ASSERT_TRUE(fs_->RemoveTree(Path("a")).ok());
  EXPECT_FALSE(fs_->Exists(Path("a")));
  EXPECT_TRUE(fs_->RemoveTree(Path("a")).ok()) << "nothing to remove is fine";
}

TEST_P(FileSystemTest, WriteFileReplacesWholeAndLeavesNoTemporary) {
  ASSERT_TRUE(fs_->WriteFile(Path("f"), "old").ok());
  ASSERT_TRUE(fs_->WriteFile(Path("f"), "new contents").ok());
  EXPECT_EQ(*fs_->ReadFile(Path("f")), "new contents");
  EXPECT_THAT(*fs_->List(root_), ElementsAre("f"));
}

TEST_P(FileSystemTest, FileStaysUntilItsLastNameGoes) {
  ASSERT_TRUE(fs_->MakeDirectory(Path("d")).ok());
  ASSERT_TRUE(fs_->WriteFile(Path("a"), "shared").ok());
  ASSERT_TRUE(fs_->Link(Path("a"), Path("d/b")).ok());
  EXPECT_EQ(fs_->Link(Path("a"), Path("d/b")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_->Link(Path("none"), Path("c")).code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs_->Link(Path("d"), Path("c")).ok()) << "a folder has one name";
  ASSERT_TRUE(fs_->SyncFile(Path("d/b")).ok());
  ASSERT_TRUE(fs_->RemoveFile(Path("a")).ok());
  EXPECT_EQ(*fs_->ReadFile(Path("d/b")), "shared");
  ASSERT_TRUE(fs_->RemoveFile(Path("d/b")).ok());
  EXPECT_EQ(fs_->SyncFile(Path("d/b")).code(), StatusCode::kNotFound);
}

TEST_P(FileSystemTest, LockIsExclusiveAndNamesItsHolder) {
  auto first = fs_->Lock(Path("lock"), "controller pid 41");
  ASSERT_TRUE(first.ok());
  const auto second = fs_->Lock(Path("lock"), "controller pid 42");
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("locked by controller pid 41"));
  first->reset();
  EXPECT_TRUE(fs_->Lock(Path("lock"), "controller pid 42").ok());
}

TEST(PathTest, PartsAndJoins) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(ParentPath("a/b/"), "a");
  EXPECT_EQ(ParentPath("a"), ".");
  EXPECT_EQ(ParentPath("/a"), "/");
  EXPECT_EQ(BaseName("a/b/"), "b");
}

TEST(FileErrorTest, SaysWhatToDo) {
  EXPECT_EQ(FileError(ENOSPC, "write", "r/j").ToString(),
            "RESOURCE_EXHAUSTED: r/j: cannot write: no space left on the disk; free some, or choose a folder "
            "on another disk");
  EXPECT_EQ(FileError(EACCES, "create folder", "r").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(FileError(EROFS, "create folder", "r").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(FileError(EIO, "read", "r").code(), StatusCode::kDataLoss);
}

class RealFileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/tidepool_real_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { EXPECT_TRUE(fs_.RemoveTree(root_).ok()); }
  RealFileSystem fs_;
  std::string root_;
};

TEST_F(RealFileSystemTest, OwnerOnlyFilesAreNotReadableByOthers) {
  auto file = fs_.CreateNew(root_ + "/secret", FileAccess::kOwnerOnly);
  ASSERT_TRUE(file.ok());
  struct stat info {};
  ASSERT_EQ(::stat((root_ + "/secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(RealFileSystemTest, LinkedFolderIsFollowedButNotRemoved) {
  ASSERT_TRUE(fs_.MakeDirectories(root_ + "/disk2").ok());
  ASSERT_TRUE(fs_.WriteFile(root_ + "/disk2/keep", "x").ok());
  ASSERT_EQ(::symlink("disk2", (root_ + "/runs").c_str()), 0);
  ASSERT_TRUE(fs_.MakeDirectories(root_ + "/runs/a").ok()) << "runs/ may be a link to a larger disk";
  ASSERT_TRUE(fs_.RemoveTree(root_ + "/runs").ok());
  EXPECT_TRUE(fs_.Exists(root_ + "/disk2/keep"));
}

// A download cache holds links to its files.
TEST_F(RealFileSystemTest, NewNameIsThatOfTheFileWhichALinkNames) {
  ASSERT_TRUE(fs_.WriteFile(root_ + "/blob", "x").ok());
  ASSERT_EQ(::symlink("blob", (root_ + "/link").c_str()), 0);
  ASSERT_TRUE(fs_.Link(root_ + "/link", root_ + "/name").ok());
  EXPECT_FALSE(fs_.Stat(root_ + "/name")->is_link);
  ASSERT_EQ(::chmod((root_ + "/name").c_str(), 0444), 0);
  EXPECT_TRUE(fs_.SyncFile(root_ + "/name").ok()) << "reading is enough";
}

TEST_F(RealFileSystemTest, LockEndsWithAKilledProcess) {
  const std::string path = root_ + "/lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RealFileSystem fs;
    auto lock = fs.Lock(path, "controller pid " + std::to_string(::getpid()));
    const char ok = lock.ok() ? 'y' : 'n';
    (void)!::write(ready[1], &ok, 1);
    ::pause();
    ::_exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  EXPECT_THAT(fs_.Lock(path, "me").status().message(), HasSubstr("pid " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs_.Lock(path, "me").ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

// Who set the run's folder aside holds the lock of the new one; a comer that waits at the old file must not
// get in by it.
TEST_F(RealFileSystemTest, LockIsOfTheFileThatIsThereNow) {
  const std::string path = root_ + "/run/lock";
  ASSERT_TRUE(fs_.MakeDirectory(root_ + "/run").ok());
  auto old = fs_.Lock(path, "old");
  ASSERT_TRUE(old.ok());
  const auto open = [&] {
    int64_t n = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      n += std::filesystem::read_symlink(fd.path(), gone) == path ? 1 : 0;
    }
    return n;
  };
  Status comer;
  std::thread waits([&] { comer = RealFileSystem().Lock(path, "comer").status(); });
  while (open() < 2) std::this_thread::yield();
  ASSERT_TRUE(fs_.Rename(root_ + "/run", root_ + "/aside").ok());
  ASSERT_TRUE(fs_.MakeDirectory(root_ + "/run").ok());
  const auto now = fs_.Lock(path, "now");
  ASSERT_TRUE(now.ok());
  old->reset();
  waits.join();
  EXPECT_EQ(comer.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(comer.message(), HasSubstr("locked by now"));
}

TEST_F(RealFileSystemTest, ALockThatIsTakenIsKeptWhenTheOldHolderEnds) {
  const std::string path = root_ + "/lock";
  auto old = fs_.Lock(path, "old");
  ASSERT_TRUE(old.ok());
  auto now = fs_.TakeLock(path, "now");
  ASSERT_TRUE(now.ok()) << now.status().ToString();
  old->reset();
  EXPECT_THAT(fs_.Lock(path, "comer").status().message(), HasSubstr("locked by now"));
  EXPECT_EQ(RealFileSystem::LockedBy(path), "now");
  now->reset();
  EXPECT_TRUE(fs_.Lock(path, "comer").ok());
}

// Whoever wants to make room there needs the lock, but not the note in it.
TEST_F(RealFileSystemTest, LockIsHadOnAFullDisk) { EXPECT_TRUE(fs_.Lock("/dev/full", "me").ok()); }

TEST_F(RealFileSystemTest, FullDeviceIsResourceExhausted) {
  RealFileSystem fs;
  auto file = fs.OpenForAppend("/dev/full");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Append("x").code(), StatusCode::kResourceExhausted);
}

TEST_F(RealFileSystemTest, FifoIsRefusedInPlaceOfHangingTheReader) {
  const std::string path = root_ + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto file = fs_.OpenForRead(path);
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(file.status().message(), HasSubstr(path + ": is no regular file"));
}

TEST(MemoryFileSystemTest, PowerCutKeepsWhatWasSyncedAndNoMore) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    MemoryFileSystem fs(MemoryFaults{.seed = seed});
    auto file = fs.CreateNew("f");
    ASSERT_TRUE((*file)->Append("durable").ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE(fs.SyncDir(".").ok());
    ASSERT_TRUE((*file)->Append("maybe").ok());
    fs.Crash();
    EXPECT_EQ((*file)->Append("x").code(), StatusCode::kUnavailable) << "handles do not outlive the machine";
    const std::string left = *fs.ReadFile("f");
    EXPECT_EQ(left.substr(0, 7), "durable") << "seed " << seed;
    EXPECT_LE(left.size(), 12U);
    seen.insert(left);
  }
  EXPECT_TRUE(seen.contains("durable"));
  EXPECT_TRUE(seen.contains("durablemaybe"));
  EXPECT_TRUE(seen.contains("durablema"));
  EXPECT_GT(seen.size(), 6U) << "holes and cuts of several lengths";
}

TEST(MemoryFileSystemTest, NamesAreLostWithoutSyncDirAndRenamesAreAtomic) {
  int lost = 0;
  int renamed = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    MemoryFileSystem fs(MemoryFaults{.seed = seed});
    ASSERT_TRUE(fs.WriteFile("f", "old").ok());  // durable
    ASSERT_TRUE(fs.CreateNew("unsynced").ok());
    auto next = fs.CreateNew("f.tmp");
    ASSERT_TRUE((*next)->Append("new").ok());
    ASSERT_TRUE((*next)->Sync().ok());
    ASSERT_TRUE(fs.Rename("f.tmp", "f").ok());
    fs.Crash();
    lost += fs.Exists("unsynced") ? 0 : 1;
    const std::string f = *fs.ReadFile("f");
    EXPECT_TRUE(f == "old" || f == "new") << f;
    renamed += f == "new" ? 1 : 0;
    EXPECT_FALSE(f == "new" && fs.Exists("f.tmp"));
  }
  EXPECT_GT(lost, 5);
  EXPECT_GT(renamed, 5);
  EXPECT_LT(renamed, 95);
}

TEST(MemoryFileSystemTest, NamesOfOneFileLoseTheSameBytes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemoryFileSystem fs({.seed = seed, .capacity_bytes = 100});
    ASSERT_TRUE((*fs.CreateNew("a"))->Append("not synced").ok());
    ASSERT_TRUE(fs.Link("a", "b").ok());
    ASSERT_TRUE(fs.SyncDir("/").ok());
    fs.Crash();
    EXPECT_EQ(*fs.ReadFile("a"), *fs.ReadFile("b"));
    const int64_t free = *fs.FreeBytes("/");
    ASSERT_TRUE(fs.RemoveFile("a").ok());
    EXPECT_EQ(*fs.FreeBytes("/"), free) << "it has another name";
    ASSERT_TRUE(fs.RemoveFile("b").ok());
    EXPECT_EQ(*fs.FreeBytes("/"), 100);
  }
}

TEST(MemoryFileSystemTest, CapacityGivesShortWritesAndReservedSpaceIsKept) {
  MemoryFileSystem fs(MemoryFaults{.capacity_bytes = 10});
  auto kept = fs.CreateNew("kept");
  ASSERT_TRUE((*kept)->Preallocate(4).ok());
  auto file = fs.CreateNew("f");
  EXPECT_EQ((*file)->Append("12345678").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*file)->size(), 6) << "a disk writes what fits";
  EXPECT_EQ(*fs.FreeBytes("."), 0);
  EXPECT_TRUE((*kept)->Append("abcd").ok());
  EXPECT_EQ((*kept)->Append("e").code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(fs.RemoveFile("f").ok());
  EXPECT_TRUE((*kept)->Append("e").ok());
}

TEST(MemoryFileSystemTest, FaultsStrikeTheNamedOperation) {
  MemoryFileSystem fs(MemoryFaults{.fail_operation = 1, .operation_time = FromSeconds(0.5)});
  auto file = fs.CreateNew("f");                                  // 0
  EXPECT_EQ((*file)->Append("x").code(), StatusCode::kDataLoss);  // 1
  EXPECT_TRUE((*file)->Append("y").ok());
  EXPECT_EQ(fs.busy(), FromSeconds(1.5));
  fs.SetFaults({.crash_at_operation = 0});
  EXPECT_EQ((*file)->Append("z").code(), StatusCode::kUnavailable);
  EXPECT_TRUE(fs.crashed());
  EXPECT_EQ(fs.ReadFile("f").status().code(), StatusCode::kUnavailable);
  fs.Crash();
  EXPECT_FALSE(fs.crashed());
}

TEST(MemoryFileSystemTest, KilledProcessLosesItsLocksOnly) {
  MemoryFileSystem fs;
  auto lock = fs.Lock("l", "a");
  auto file = fs.CreateNew("f");
  ASSERT_TRUE((*file)->Append("unsynced").ok());
  fs.Kill();
  EXPECT_EQ(*fs.ReadFile("f"), "unsynced");
  EXPECT_TRUE(fs.Lock("l", "b").ok());
}

}  // namespace
}  // namespace tidepool
