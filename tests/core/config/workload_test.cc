// What `tidepool simulate` reads: every mistake is found, with its place, before anything runs.

#include "core/config/workload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tidepool::config {
namespace {

constexpr const char* kHead =
    "workload: w\nhardware: h100\nmodel: {name: m, parameters: 1e9, layers: 2, heads: 2, kv_heads: 1, "
    "head_size: 64}\n";

StatusOr<Workload> Load(const std::string& text) {
  const std::string path = testing::TempDir() + "/workload_test_" +
                           std::to_string(testing::UnitTest::GetInstance()->random_seed()) + "_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".yaml";
  std::ofstream(path) << text;
  auto loaded = LoadWorkload(path);
  std::filesystem::remove(path);
  return loaded;
}

TEST(WorkloadTest, EveryWorkloadOfTheRepositoryLoads) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs/simulate")) {
    const auto w = LoadWorkload(entry.path().string());
    EXPECT_TRUE(w.ok()) << w.status().message();
    ++seen;
  }
  EXPECT_GE(seen, 7);
}

TEST(WorkloadTest, FaultsAreReadAndQuietByDefault) {
  const auto calm = Load(kHead);
  ASSERT_TRUE(calm.ok()) << calm.status().message();
  EXPECT_EQ(calm->faults.kill_mean_s, 0);
  const auto w = Load(std::string(kHead) + "faults: {kill_mean_s: 60, loss: 0.1, stop_at_s: 100}\n");
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->faults.kill_mean_s, 60);
  EXPECT_EQ(w->faults.loss, 0.1);
  EXPECT_EQ(w->faults.stop_at_s, 100);
}

TEST(WorkloadTest, AFaultThatCannotBeIsNamedWithItsLine) {
  const auto w = Load(std::string(kHead) + "faults:\n  loss: 1.5\n  kills: 3\n  restart_s: soon\n");
  ASSERT_FALSE(w.ok());
  EXPECT_EQ(w.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(w.status().message().find(":5"), std::string::npos) << w.status().message();
  EXPECT_NE(w.status().message().find("loss: is 1.5; it has to be at least 0 and at most 0.9"),
            std::string::npos)
      << w.status().message();
  EXPECT_NE(w.status().message().find("faults: unknown key 'kills'; known: delay_spread"), std::string::npos)
      << w.status().message();
  EXPECT_NE(w.status().message().find("restart_s: found"), std::string::npos) << w.status().message();
}

}  // namespace
}  // namespace tidepool::config
