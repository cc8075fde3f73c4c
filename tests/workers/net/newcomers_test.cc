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
#include "workers/net/why_not_believed.h"
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
  ASSERT_TRUE(WriteJoinTokens(file, {Token()}).ok());
  EXPECT_EQ(WriteJoinTokens(file, {Token()}).code(), StatusCode::kAlreadyExists);
  const auto tokens = ReadJoinTokens(file);
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  const JoinToken& token = tokens->front();
  const Status joined = Join(token, mine);
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
  const Status again = Join(token, dir_ + "/again");
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
  ASSERT_TRUE(WriteJoinTokens(file, {token}).ok());
  fs::permissions(file, fs::perms::others_read, fs::perm_options::add);
  EXPECT_EQ(ReadJoinTokens(file).status().code(), StatusCode::kPermissionDenied);
  fs::remove(file);
  token.scope.expires = 1;
  ASSERT_TRUE(WriteJoinTokens(file, {token}).ok());
  EXPECT_EQ(ReadJoinTokens(file).status().code(), StatusCode::kFailedPrecondition);
  for (const char* none : {"{}", "[]", "[{}]", "[1", ""}) {
    ASSERT_TRUE(WriteSecretFile(file, none).ok());
    EXPECT_EQ(ReadJoinTokens(file).status().code(), StatusCode::kInvalidArgument) << none;
  }
}

// A newcomer's files, of which the run's authority has made the certificate.
struct Newcomer {
  explicit Newcomer(int64_t lifetime_s) : dir(testing::TempDir() + "/renewed_newcomer") {
    fs::remove_all(dir);
    fs::create_directories(dir);
    const auto leaf = *x509::Issue(authority, "run-a", lifetime_s, kNames);
    Write("authority.crt", first);
    Write("reward.key", x509::Pem(leaf.key.get()));
    Write("reward.crt", x509::Pem(leaf.certificate.get()));
  }
  ~Newcomer() { fs::remove_all(dir); }
  void Write(const std::string& file, const std::string& text) const {
    EXPECT_TRUE(WriteSecretFile(dir + "/" + file, text).ok());
  }
  [[nodiscard]] Identity Files() const {
    const auto files = ReadIdentity(dir + "/reward.token");
    EXPECT_TRUE(files.ok()) << files.status().ToString();
    return **files;
  }
  // As the controller answers.
  StatusOr<CertificateRenewal::Certified> Answer(const std::string& request) {
    asked.push_back(request);
    if (!fails.ok()) return fails;
    CertificateRenewal::Certified made{believed, "", seconds(0)};
    if (request.empty()) return made;
    made.certificate =
        x509::Pem(x509::IssueFor(x509::KeyOfRequest(request).get(), next, "run-a", 400, kNames).get());
    made.believed_in = seconds(2);
    return made;
  }
  std::unique_ptr<NewcomerRenewal> Renewal() {
    return NewcomerRenewal::Of(Files(), [this](const std::string& request) { return Answer(request); });
  }
  const std::vector<std::string> kNames = NewcomerNames(CallerRole::kReward, 2);
  const x509::Issued authority = *x509::IssueAuthority("run-a", 1000),
                     next = *x509::IssueAuthority("run-a", 1000);
  const std::string first = x509::Pem(authority.certificate.get()),
                    both = first + x509::Pem(next.certificate.get());
  const std::string dir;
  std::string believed = first;
  std::vector<std::string> asked;
  Status fails;
};

TEST(NewcomerRenewalTest, ItsAuthoritiesFollowTheRunsAndItsCertificateIsMadeAnewLongBeforeItsEnd) {
  Newcomer newcomer(60);
  const auto renewal = newcomer.Renewal();
  ASSERT_NE(renewal, nullptr);
  const Identity before = newcomer.Files();
  auto now = system_clock::now();
  EXPECT_EQ(*renewal->Advance(now), "");
  EXPECT_EQ(newcomer.asked, std::vector<std::string>{""});
  newcomer.believed = newcomer.both;
  EXPECT_EQ(*renewal->Advance(now), "");
  EXPECT_EQ(newcomer.Files().authority, newcomer.both);
  EXPECT_EQ(newcomer.Files().certificate, before.certificate);
  // Before its last third nobody is the worse for a controller that does not answer.
  newcomer.fails = Unavailable("not now");
  EXPECT_EQ(*renewal->Advance(now + seconds(38)), "");
  now += seconds(43);
  const auto failed = renewal->Advance(now);
  EXPECT_EQ(failed.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(failed.status().message(), HasSubstr("the certificate ends at 20"));
  EXPECT_THAT(failed.status().message(), HasSubstr("there is no new one: not now; it is tried again"));
  EXPECT_THAT(failed.status().message(), HasSubstr("tidepool join-token RUN"));
  // It is shown when all believe who made it.
  newcomer.fails = OkStatus();
  EXPECT_EQ(*renewal->Advance(now), "");
  EXPECT_NE(newcomer.asked.back(), "");
  EXPECT_EQ(*renewal->Advance(now + seconds(1)), "");
  EXPECT_EQ(newcomer.Files().certificate, before.certificate);
  EXPECT_THAT(*renewal->Advance(now + seconds(2)), HasSubstr("has a new certificate, which holds until 20"));
  const Identity renewed = newcomer.Files();
  EXPECT_NE(renewed.certificate, before.certificate);
  EXPECT_NE(renewed.key, before.key);
  EXPECT_TRUE(x509::IsFor(x509::ParseCertificate(renewed.certificate).get(), CertifiedPlace(2)));
  EXPECT_FALSE(fs::exists(newcomer.dir + "/exchange"));
  newcomer.asked.clear();
  EXPECT_EQ(*renewal->Advance(now + seconds(3)), "");
  EXPECT_EQ(newcomer.asked, std::vector<std::string>{""}) << "the new one has most of its life before it";
}

// A folder in its way stands for a full disk, or for the death of the worker, at that file.
TEST(NewcomerRenewalTest, AnExchangeThatWasCutOffIsEndedByTheNextTryOrTheNextProcess) {
  for (const bool dies : {false, true}) {
    for (const char* last : {"reward.crt", "reward.key"}) {
      SCOPED_TRACE(last);
      Newcomer newcomer(60);
      newcomer.believed = newcomer.both;
      const auto renewal = newcomer.Renewal();
      const Identity before = newcomer.Files();
      const auto late = system_clock::now() + seconds(43);
      EXPECT_EQ(*renewal->Advance(late), "");
      const std::string file = newcomer.dir + "/" + last;
      fs::rename(file, file + ".old");
      fs::create_directories(file + "/in_the_way");
      EXPECT_EQ(renewal->Advance(late + seconds(2)).status().code(), StatusCode::kUnavailable);
      fs::remove_all(file);
      fs::rename(file + ".old", file);
      if (!dies) {
        EXPECT_THAT(*renewal->Advance(late + seconds(3)), HasSubstr("has a new certificate"));
      }
      const Identity after = newcomer.Files();
      EXPECT_NE(after.certificate, before.certificate);
      EXPECT_TRUE(x509::AreOfEachOther(x509::ParseCertificate(after.certificate).get(),
                                       x509::ParseKey(after.key).get()));
    }
  }
}

TEST(NewcomerRenewalTest, OneThatHasEndedSaysWhatToDoWhetherOrNotAControllerIsThere) {
  Newcomer newcomer(60);
  Identity ended = newcomer.Files();
  ended.certificate = x509::Pem(
      x509::IssueFor(x509::ParseKey(ended.key).get(), newcomer.authority, "run-a", -5, newcomer.kNames)
          .get());
  const std::string why = WhyNotBelieved("127.0.0.1:1", ended, std::chrono::milliseconds(100)).why;
  EXPECT_THAT(why, HasSubstr("reward.crt: the certificate has expired at 20"));
  EXPECT_THAT(why, HasSubstr("make another join token (`tidepool join-token RUN`) and join again"));
  newcomer.Write("reward.crt", ended.certificate);
  EXPECT_THAT(ReadIdentity(newcomer.dir + "/reward.token").status().message(), HasSubstr("join again"));
}

TEST(NewcomerRenewalTest, CertificatesOfRolesAreTheControllersAffair) {
  Newcomer newcomer(60);
  Identity of_role = newcomer.Files();
  of_role.certificate = x509::Pem(
      x509::Issue(newcomer.authority, "run-a", 60, {CertifiedName("reward"), kPagesName})->certificate.get());
  EXPECT_EQ(NewcomerRenewal::Of(of_role, nullptr), nullptr);
}

TEST(PlaceNameTest, IsReadAsItIsWritten) {
  EXPECT_EQ(PlaceOf(CertifiedPlace(12)), 12);
  for (const char* none : {"place-.tidepool", "place-1x.tidepool", "place-01.tidepool", "device.tidepool",
                           "place-99999999999999999999.tidepool"})
    EXPECT_EQ(PlaceOf(none), std::nullopt) << none;
}

}  // namespace
}  // namespace tidepool::workers
