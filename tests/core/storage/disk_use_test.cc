#include "core/storage/disk_use.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tidepool::storage {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;

// What a folder itself takes is less.
int64_t MiBOf(int64_t bytes) { return bytes / kMiB; }

struct Tree {
  Tree() : root(fs::path(testing::TempDir()) / ("disk_use_" + std::to_string(::getpid()))) {
    for (const char* folder : {"run/step_0", "run/step_2", "run/final", "base"})
      fs::create_directories(root / folder);
  }
  ~Tree() { fs::remove_all(root); }
  [[nodiscard]] std::string Write(const std::string& name, int64_t bytes) const {
    std::ofstream(root / name) << std::string(static_cast<size_t>(bytes), 'x');
    return (root / name).string();
  }
  [[nodiscard]] std::string At(const std::string& name) const { return (root / name).string(); }
  fs::path root;
};

TEST(DiskUseTest, FileWithSeveralNamesIsCountedOnce) {
  const Tree tree;
  const std::string a = tree.Write("run/step_2/a", 2 * kMiB);
  fs::create_hard_link(a, tree.At("run/final/a"));
  fs::create_symlink(a, tree.At("run/final/link"));
  EXPECT_EQ(MiBOf(DiskBytes(tree.At("run"))), 2);
  EXPECT_EQ(MiBOf(DiskBytes(a)), 2);
  EXPECT_EQ(DiskBytes(tree.At("none")), 0);
}

// A hole is no use of the disk, though the file is as long.
TEST(DiskUseTest, HolesTakeNothing) {
  const Tree tree;
  const std::string zeros = tree.Write("run/zeros", 0);
  fs::resize_file(zeros, 64 * kMiB);
  EXPECT_EQ(MiBOf(DiskBytes(zeros)), 0);
}

// What is also another's stays: the base model that step 0 links, the weights that final/ has.
TEST(DiskUseTest, NothingComesFreeWhileAnotherNameStays) {
  const Tree tree;
  const std::string weights = tree.Write("base/weights", 4 * kMiB);
  fs::create_hard_link(weights, tree.At("run/step_0/weights"));
  const std::string trained = tree.Write("run/step_2/weights", 2 * kMiB);
  (void)tree.Write("run/step_2/moments", 3 * kMiB);
  fs::create_hard_link(trained, tree.At("run/final/weights"));
  const auto freed = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(tree.At(name));
    std::vector<int64_t> mib;
    for (const int64_t bytes : FreedBytes(paths)) mib.push_back(MiBOf(bytes));
    return mib;
  };
  EXPECT_EQ(freed({"run/step_0", "run/step_2"}), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(freed({"run/step_2", "run/final"}), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(freed({"run"}), (std::vector<int64_t>{5}));
}

}  // namespace
}  // namespace tidepool::storage
