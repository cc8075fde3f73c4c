#include "workers/controller/held_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

TEST(HeldFolderTest, IsFoundWhereItWasMovedTo) {
  const fs::path root = fs::path(testing::TempDir()) / ("held_" + std::to_string(::getpid()));
  const fs::path run = root / "runs" / "a";
  fs::create_directories(run);
  {
    const auto held = HeldFolder::Open(run);
    ASSERT_TRUE(held.ok()) << held.status().ToString();
    EXPECT_EQ(held->MovedTo(), std::nullopt);
    fs::rename(run, root / "b");
    EXPECT_EQ(held->MovedTo(), (root / "b").string());
    fs::create_directories(run);
    EXPECT_EQ(held->MovedTo(), (root / "b").string()) << "another folder has its name now";
    fs::remove(run);
    fs::rename(root / "b", run);
    EXPECT_EQ(held->MovedTo(), std::nullopt);
    fs::rename(root / "runs", root / "elsewhere");
    EXPECT_EQ(held->MovedTo(), (root / "elsewhere" / "a").string()) << "so is one above it";
    fs::remove_all(root / "elsewhere");
    EXPECT_EQ(held->MovedTo(), "") << "it was removed";
  }
  EXPECT_FALSE(HeldFolder::Open(run).ok());
  fs::remove_all(root);
}

TEST(HeldFolderTest, IsRemovedWithoutAFileThatItAlwaysHas) {
  const fs::path root = fs::path(testing::TempDir()) / ("held_files_" + std::to_string(::getpid()));
  fs::create_directories(root / "journal");
  std::ofstream(root / "config.yaml") << "a";
  std::ofstream(root / "journal" / "lock") << "b";
  const auto held = HeldFolder::Open(root, {"config.yaml", "journal/lock"});
  ASSERT_TRUE(held.ok()) << held.status().ToString();
  EXPECT_EQ(held->MovedTo(), std::nullopt);
  fs::remove_all(root / "journal");
  EXPECT_EQ(held->MovedTo(), "") << "rm -r has got as far as that";
  fs::remove_all(root);
}

}  // namespace
}  // namespace tidepool::workers
