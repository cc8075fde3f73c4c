#include "workers/cli/session_folder.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

TEST(SessionFolderTest, WhatAKilledProcessLeftGoesWithTheNextOne) {
  const fs::path parent = fs::path(testing::TempDir()) / ("sessions_" + std::to_string(::getpid()));
  fs::create_directories(parent);
  const auto old = [](const fs::path& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  };
  auto alive = SessionFolder::MakeIn(parent.string());
  ASSERT_TRUE(alive.ok()) << alive.status().message();
  fs::create_directories(parent / "tidepool-session-killed/weights");
  fs::create_directories(parent / "tidepool-other");
  for (const auto& entry : fs::directory_iterator(parent)) old(entry.path());
  fs::create_directories(parent / "tidepool-session-fresh");
  const auto next = SessionFolder::MakeIn(parent.string());
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(fs::exists(parent / "tidepool-session-killed"));
  EXPECT_TRUE(fs::exists(alive->path())) << "its process lives";
  EXPECT_TRUE(fs::exists(parent / "tidepool-session-fresh")) << "it may be about to be locked";
  EXPECT_TRUE(fs::exists(parent / "tidepool-other")) << "not ours";
  fs::remove_all(parent);
}

}  // namespace
}  // namespace tidepool::workers
