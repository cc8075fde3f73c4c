#include "workers/net/auth.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

namespace tidepool::workers {
namespace {

TEST(JobTokensTest, ATokenOfOneRoleIsNotThatOfAnother) {
  const JobTokens tokens = *JobTokens::Random();
  EXPECT_EQ(tokens.RoleOf(tokens.Token(CallerRole::kDevice)), CallerRole::kDevice);
  EXPECT_EQ(tokens.RoleOf(tokens.Token(CallerRole::kReward)), CallerRole::kReward);
  EXPECT_NE(tokens.Token(CallerRole::kDevice), tokens.Token(CallerRole::kReward));
  EXPECT_FALSE(tokens.RoleOf("").has_value());
  EXPECT_FALSE(tokens.RoleOf(std::string(64, '0')).has_value());
}

TEST(JobTokensTest, AnotherJobsTokenIsNoneOfOurs) {
  const JobTokens ours = *JobTokens::Random();
  const JobTokens theirs = *JobTokens::Random();
  EXPECT_FALSE(ours.RoleOf(theirs.Token(CallerRole::kDevice)).has_value());
}

TEST(JobTokensTest, ARestartReadsTheSameSecretAndFilesAreForTheOwnerAlone) {
  const std::string dir = testing::TempDir() + "/tokens";
  std::filesystem::remove_all(dir);
  const JobTokens first = *JobTokens::OpenOrCreate(dir);
  const JobTokens second = *JobTokens::OpenOrCreate(dir);
  EXPECT_EQ(first.Token(CallerRole::kDevice), second.Token(CallerRole::kDevice));
  struct stat st {};
  ASSERT_EQ(stat((dir + "/device.token").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(*ReadTokenFile(dir + "/device.token"), first.Token(CallerRole::kDevice));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    files.insert(entry.path().filename().string());
  EXPECT_EQ(files, (std::set<std::string>{"device.token", "environment.token", "operator.token",
                                          "reward.token", "secret"}));
}

TEST(JobTokensTest, ATokenFileThatOthersCanReadIsRefused) {
  const std::string dir = testing::TempDir() + "/open_tokens";
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(JobTokens::OpenOrCreate(dir).ok());
  chmod((dir + "/device.token").c_str(), 0644);
  EXPECT_EQ(ReadTokenFile(dir + "/device.token").status().code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tidepool::workers
