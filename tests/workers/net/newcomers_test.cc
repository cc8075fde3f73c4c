// Join tokens: good once, for a place, for a time, with one controller; and nobody else learns of them.
#include "workers/net/newcomers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "workers/net/join_service.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using std::chrono::system_clock;
using testing::HasSubstr;

constexpr int64_t kEpoch = 3;

class NewcomersTest : public testing::Test {
 protected:
  NewcomersTest() : dir_(testing::TempDir() + "/newcomers"), tokens_(*JobTokens::Random()) {
    fs::remove_all(dir_);
    fs::create_directories(security());
    controller_ = *OpenOrCreateCertificates(security(), "run-a", kTimes);
    renewal_ = std::make_unique<CertificateRenewal>(security(), "run-a", kTimes);
    auto server = JoinServer::Start(
        {.bind = "127.0.0.1", .advertise = "", .identity = controller_},
        [this](const std::string& id, const std::string& secret, const std::string& request) {
          ++asked_;
          return Admit(security(), tokens_, kEpoch, *renewal_, id, secret, request, now_);
        });
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  ~NewcomersTest() override {
    server_.reset();
    fs::remove_all(dir_);
  }
  [[nodiscard]] std::string security() const { return dir_ + "/security"; }
  [[nodiscard]] JoinToken Token(int64_t epoch = kEpoch) const {
    JoinToken token{server_->address(), "127.0.0.1:1", "run-a", controller_.authority, "", "", {}};
    token.scope = {CallerRole::kReward, 2, epoch,
                   std::chrono::duration_cast<seconds>(system_clock::now().time_since_epoch()).count() + 60};
    return *MakeJoinToken(security(), token);
  }

  static constexpr CertificateTimes kTimes{.lifetime = 100};  // who listens looks every second
  const std::string dir_;
  const JobTokens tokens_;
  Identity controller_;
  std::unique_ptr<CertificateRenewal> renewal_;
  system_clock::time_point now_ = system_clock::now();
  std::atomic<int> asked_{0};
  std::unique_ptr<JoinServer> server_;
};

TEST_F(NewcomersTest, AJoinTokenGivesACertificateOfItsRoleAndPlaceOnce) {
  const std::string file = dir_ + "/join.json", mine = dir_ + "/mine";
  ASSERT_TRUE(WriteJoinToken(file, Token()).ok());
  EXPECT_EQ(WriteJoinToken(file, Token()).code(), StatusCode::kAlreadyExists);
  const auto token = ReadJoinToken(file);
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  const Status joined = Join(*token, mine);
  ASSERT_TRUE(joined.ok()) << joined.ToString();
  const auto credentials = ReadCredentials(mine + "/reward.token");
  ASSERT_TRUE(credentials.ok()) << credentials.status().ToString();
  EXPECT_EQ(credentials->token, tokens_.Token(CallerRole::kReward));
  const auto certificate = x509::ParseCertificate(credentials->identity->certificate);
  for (const char* name : {"reward.tidepool", "pages.tidepool", "place-2.tidepool"})
    EXPECT_TRUE(x509::IsFor(certificate.get(), name)) << name;
  EXPECT_FALSE(x509::IsFor(certificate.get(), "device.tidepool"));
  EXPECT_EQ(fs::status(mine).permissions(), fs::perms::owner_all);
  // The run believes it, before and after the next exchange of its own.
  const auto believed = [&] {
    const auto authorities =
        x509::ParseCertificates((*ReadIdentity(security() + "/device.token"))->authority);
    return x509::IssuerOf(certificate.get(), authorities) != nullptr;
  };
  EXPECT_TRUE(believed());
  ASSERT_THAT(*renewal_->Advance(now_ + seconds(95)), HasSubstr("next authority"));
  EXPECT_TRUE(believed());
  // Once.
  const Status again = Join(*token, dir_ + "/again");
  EXPECT_EQ(again.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(again.message(), HasSubstr("it was used"));
  EXPECT_EQ(asked_, 2);
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    if (!entry.is_regular_file() || entry.path() == file) continue;
    EXPECT_EQ(fs::file_size(entry.path()) == 0, false);
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none)
        << entry.path();
  }
}

TEST_F(NewcomersTest, WhatIsNotGoodIsRefusedInTheSameWordsAndUsesNothingUp) {
  const JoinToken good = Token();
  std::vector<JoinToken> bad(4, good);
  bad[0].secret = std::string(64, 'a');
  bad[1].id = "0123456789abcdef";
  bad[2].id = "../../../../etc/";
  bad[3] = Token(kEpoch - 1);
  std::set<std::string> words;
  for (const JoinToken& token : bad) {
    const Status refused = Join(token, dir_ + "/mine");
    EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << refused.ToString();
    words.insert(refused.message());
  }
  const auto soon = now_;
  now_ += seconds(61);
  words.insert(Join(good, dir_ + "/mine").message());
  EXPECT_EQ(words.size(), 1) << "a hint of what was wrong";
  now_ = soon;
  const auto admitted = Admit(security(), tokens_, kEpoch, *renewal_, good.id, good.secret, "none", now_);
  EXPECT_EQ(admitted.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Join(good, dir_ + "/mine").ok());
}

TEST_F(NewcomersTest, TheSecretIsShownToTheControllerOfTheRunAlone) {
  const std::string other = dir_ + "/other";
  fs::create_directories(other);
  JoinToken token = Token();
  token.authority = OpenOrCreateCertificates(other, "run-a", kTimes)->authority;
  const Status refused = Join(token, dir_ + "/mine");
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused.ToString();
  EXPECT_EQ(asked_, 0);
  // A worker of the run is no controller.
  const auto device = *ReadIdentity(security() + "/device.token");
  const auto false_one = JoinServer::Start({.bind = "127.0.0.1", .advertise = "", .identity = *device},
                                           [&](const auto&, const auto&, const auto&) -> StatusOr<Admitted> {
                                             ++asked_;
                                             return Internal("asked");
                                           });
  ASSERT_TRUE(false_one.ok());
  token = Token();
  token.join = (*false_one)->address();
  EXPECT_EQ(Join(token, dir_ + "/mine").code(), StatusCode::kUnavailable);
  EXPECT_EQ(asked_, 0);
}

TEST_F(NewcomersTest, AFileThatOthersCanReadOrThatHasExpiredIsRefused) {
  const std::string file = dir_ + "/join.json";
  JoinToken token = Token();
  ASSERT_TRUE(WriteJoinToken(file, token).ok());
  fs::permissions(file, fs::perms::others_read, fs::perm_options::add);
  EXPECT_EQ(ReadJoinToken(file).status().code(), StatusCode::kPermissionDenied);
  fs::remove(file);
  token.scope.expires = 1;
  ASSERT_TRUE(WriteJoinToken(file, token).ok());
  EXPECT_EQ(ReadJoinToken(file).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(WriteSecretFile(file, "{}").ok());
  EXPECT_EQ(ReadJoinToken(file).status().code(), StatusCode::kInvalidArgument);
}

TEST(PlaceNameTest, IsReadAsItIsWritten) {
  EXPECT_EQ(PlaceOf(CertifiedPlace(12)), 12);
  for (const char* none : {"place-.tidepool", "place-1x.tidepool", "place-01.tidepool", "device.tidepool",
                           "place-99999999999999999999.tidepool"})
    EXPECT_EQ(PlaceOf(none), std::nullopt) << none;
}

}  // namespace
}  // namespace tidepool::workers
