// Certificates that are exchanged while they are in use, and those that nobody believes.
#include "workers/net/certificates.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "workers/net/auth.h"
#include "workers/net/tls.h"
#include "workers/net/why_not_believed.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;
using testing::HasSubstr;

// So short that who listens looks at the files every second.
constexpr CertificateTimes kShort{.lifetime = 100};

std::string Text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct Folder {
  explicit Folder(const std::string& name, const CertificateTimes& times = kShort)
      : dir(testing::TempDir() + "/renewal_" + name) {
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    const auto made = OpenOrCreateCertificates(dir, name, times);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    mine = *made;
  }
  ~Folder() { std::filesystem::remove_all(dir); }
  [[nodiscard]] Identity Of(const std::string& role) const {
    auto identity = ReadIdentity(dir + "/" + role + ".token");
    EXPECT_TRUE(identity.ok() && identity->has_value()) << identity.status().ToString();
    return **identity;
  }
  std::string dir;
  Identity mine;  // the controller's
};

struct Server {
  explicit Server(const Identity& identity) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", ServerSide(identity), &port);
    builder.RegisterAsyncGenericService(&service);
    queue = builder.AddCompletionQueue();
    server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
    works = std::jthread([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) {
      }
    });
  }
  ~Server() {
    server->Shutdown(system_clock::now());
    queue->Shutdown();
  }
  // A connection of its own that is let in; null: it is refused.
  [[nodiscard]] std::shared_ptr<grpc::Channel> Dial(const Identity& identity) const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = ClientSide(identity, kControllerRole, &args);
    auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), credentials, args);
    const auto until = system_clock::now() + seconds(60);
    for (auto state = channel->GetState(true); state != GRPC_CHANNEL_READY; state = channel->GetState(true)) {
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return nullptr;
      if (!channel->WaitForStateChange(state, until)) {
        ADD_FAILURE() << "nobody answers";
        return nullptr;
      }
    }
    return channel;
  }
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  std::jthread works;  // the handshakes
  int port = 0;
};

std::string Why(const Server& server, const Identity& identity) {
  return WhyNotBelieved("127.0.0.1:" + std::to_string(server.port), identity, seconds(30)).why;
}

bool Within(seconds patience, const std::function<bool()>& condition) {
  for (const auto until = system_clock::now() + patience; system_clock::now() < until;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return condition();
}

TEST(CertificateRenewalTest, NewConnectionsAreLetInAtEveryMomentAndOldOnesStay) {
  const Folder run("run-a");
  const Server controller(run.mine);
  const Identity device = run.Of("device");
  const auto first = controller.Dial(device);
  ASSERT_NE(first, nullptr);
  CertificateRenewal renewal(run.dir, "run-a", kShort);
  auto now = system_clock::now();
  EXPECT_EQ(*renewal.Advance(now), "") << "they hold";
  Identity held = device;  // as a worker has it that has not dialled since
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    now += seconds(kShort.lifetime - kShort.renewed_before() + 1);
    EXPECT_THAT(*renewal.Advance(now), HasSubstr("next authority is believed beside the present one"));
    EXPECT_EQ(*renewal.Advance(now), "") << "not all may have seen it";
    const Identity announced = run.Of("device");
    EXPECT_EQ(announced.certificate, held.certificate);
    EXPECT_NE(announced.authority, held.authority);
    EXPECT_NE(controller.Dial(device), nullptr);
    // The next ones are believed as soon as everybody has looked.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_THAT(*renewal.Advance(now + seconds(kShort.announced())), HasSubstr("have new certificates"));
    const Identity renewed = run.Of("device");
    EXPECT_NE(renewed.certificate, announced.certificate);
    EXPECT_TRUE(Within(seconds(60), [&] { return controller.Dial(device) != nullptr; }))
        << "who dials reads the files, the server may still show the old one";
    // The old certificate holds until its end; who was not there for the first step is refused once the
    // server shows the new one.
    Identity stale = announced;
    stale.folder.clear();
    EXPECT_NE(controller.Dial(stale), nullptr);
    Identity copied = held;
    copied.folder.clear();
    EXPECT_TRUE(Within(seconds(60), [&] { return controller.Dial(copied) == nullptr; }));
    EXPECT_NE(controller.Dial(device), nullptr);
    EXPECT_EQ(first->GetState(false), GRPC_CHANNEL_READY) << "what stands is not cut";
    held = renewed;
  }
}

TEST(CertificateRenewalTest, AControllerThatDiedBetweenTheStepsLeavesWhatHolds) {
  const Folder run("run-a");
  const auto late = system_clock::now() + seconds(kShort.lifetime - kShort.renewed_before() + 1);
  CertificateRenewal first(run.dir, "run-a", kShort), second(run.dir, "run-a", kShort);
  ASSERT_TRUE(first.Advance(late).ok());
  EXPECT_NE(Server(run.mine).Dial(run.Of("device")), nullptr);
  EXPECT_THAT(*second.Advance(late), HasSubstr("next authority"));
  EXPECT_NE(Server(run.mine).Dial(run.Of("device")), nullptr);
  EXPECT_THAT(*second.Advance(late + seconds(60)), HasSubstr("new certificates"));
  EXPECT_NE(Server(run.mine).Dial(run.Of("device")), nullptr);
}

// A folder in its way stands for the death of the controller there.
TEST(CertificateRenewalTest, AControllerThatDiedBetweenTwoFilesHasItsExchangeEnded) {
  for (const char* last : {"device.key", "device.crt", "reward.crt"}) {
    SCOPED_TRACE(last);
    const Folder folder("cut_off");
    const auto now = system_clock::now();
    const std::string file = folder.dir + "/" + last;
    {
      CertificateRenewal dies(folder.dir, "cut_off", kShort);
      ASSERT_TRUE(dies.Advance(now + seconds(95)).ok());
      std::filesystem::rename(file, file + ".old");
      std::filesystem::create_directories(file + "/in_the_way");
      EXPECT_FALSE(dies.Advance(now + seconds(99)).ok());
      std::filesystem::remove_all(file);
      std::filesystem::rename(file + ".old", file);
    }
    const auto believed = x509::ParseCertificates(Text(folder.dir + "/authority.crt"));
    ASSERT_EQ(believed.size(), 2U);
    const auto mine = OpenOrCreateCertificates(folder.dir, "cut_off", kShort);
    ASSERT_TRUE(mine.ok()) << mine.status().ToString();
    // Those that were announced to everybody, and not others that nobody believes.
    EXPECT_EQ(x509::ParseCertificates(mine->authority).size(), 2U);
    for (const char* role : {"controller", "device", "reward"}) {
      const auto certificate = x509::ParseCertificate(folder.Of(role).certificate);
      EXPECT_EQ(x509::Pem(x509::IssuerOf(certificate.get(), believed)), x509::Pem(believed.front().get()))
          << role;
    }
    EXPECT_FALSE(std::filesystem::exists(folder.dir + "/exchange"));
  }
}

TEST(CertificateRenewalTest, ASecondNewcomerWaitsUntilItIsBelieved) {
  const Folder folder("newcomers");
  CertificateRenewal renewal(folder.dir, "newcomers", kShort);
  const auto now = system_clock::now();
  const auto waits = [&](seconds later) {
    const auto certified = renewal.Certify(x509::MakeRequest()->pem, {CertifiedPlace(1)}, now + later);
    EXPECT_TRUE(certified.ok()) << certified.status().ToString();
    return certified->believed_in;
  };
  const seconds first = waits(seconds(0));
  ASSERT_GE(first, seconds(2));
  EXPECT_EQ(waits(seconds(0)), first) << "it came in the same second";
  EXPECT_EQ(waits(seconds(1)), first - seconds(1));
  EXPECT_EQ(waits(first), seconds(0));
}

TEST(CertificateRenewalTest, ANewcomerIsCertifiedAgainOnlyNowAndThen) {
  const Folder folder("again", {.lifetime = 1200});
  CertificateRenewal renewal(folder.dir, "again", {.lifetime = 1200});
  const auto now = system_clock::now();
  const auto again = [&](int64_t place, seconds later) {
    return renewal.CertifyAgain(x509::MakeRequest()->pem, {CertifiedPlace(place)}, now + later).status();
  };
  EXPECT_TRUE(again(1, seconds(0)).ok());
  EXPECT_EQ(again(1, seconds(99)).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(again(1, seconds(99)).message(), HasSubstr("was made for this place 99 s ago"));
  EXPECT_TRUE(again(2, seconds(99)).ok()) << "of another place";
  EXPECT_EQ(renewal.CertifyAgain("none", {CertifiedPlace(3)}, now).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(again(3, seconds(0)).ok()) << "what failed does not count";
  EXPECT_TRUE(again(1, seconds(100)).ok());
}

TEST(CertificateRenewalTest, OneThatStartsCloseToTheEndKeepsWhatHoldsAndExchangesItInTheRun) {
  const Folder run("run-a", {.lifetime = 60});
  const CertificateTimes year;  // a month of it is more than the minute that these have
  const auto again = OpenOrCreateCertificates(run.dir, "run-a", {.lifetime = 200});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->certificate, run.mine.certificate) << "a worker that lives believes no other one";
  CertificateRenewal renewal(run.dir, "run-a", year);
  EXPECT_THAT(*renewal.Advance(system_clock::now()), HasSubstr("next authority"));
  const Folder late("run-b", {.lifetime = 2});
  ASSERT_TRUE(OpenOrCreateCertificates(late.dir, "run-b", kShort).ok());
  EXPECT_NE(late.Of("device").certificate, late.mine.certificate) << "no time is left for steps";
}

// A folder that somebody else keeps.
struct Given {
  Given() : dir(testing::TempDir() + "/given") {
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    NewAuthority();
  }
  ~Given() { std::filesystem::remove_all(dir); }
  void NewAuthority() {
    authority = *x509::IssueAuthority("somebody", 3600);
    Write("authority.crt", x509::Pem(authority.certificate.get()));
    NewLeaves();
  }
  void NewLeaves() const {
    NewLeaf(kControllerRole);
    for (const CallerRole role : AllOf<CallerRole>()) NewLeaf(Name(role));
  }
  void NewLeaf(const std::string& role) const {
    std::vector<std::string> names = {CertifiedName(role)};
    if (ServesPages(role)) names.emplace_back(kPagesName);
    const auto leaf = *x509::Issue(authority, "somebody", 3600, names);
    Write(role + ".crt", x509::Pem(leaf.certificate.get()));
    Write(role + ".key", x509::Pem(leaf.key.get()));
  }
  void Write(const std::string& file, const std::string& text) const {
    ASSERT_TRUE(WriteSecretFile(dir + "/" + file, text).ok());
  }
  std::string dir;
  x509::Issued authority;
};

TEST(CertificateRenewalTest, ThoseOfSomebodyElseAreTakenAgainWhenTheirFilesChange) {
  const Given given;
  const Folder run("run-a");
  RemoveCertificates(run.dir);
  ASSERT_TRUE(TakeCertificates(given.dir, run.dir).ok());
  CertificateRenewal renewal(run.dir, "run-a", kShort, given.dir);
  auto now = system_clock::now();
  const auto advance = [&](seconds by = seconds(1)) {
    now += by;
    auto done = renewal.Advance(now);
    return done.ok() ? *done : done.status().ToString();
  };
  for (int look = 0; look < 3; ++look) EXPECT_EQ(advance(), "");
  const Identity first = run.Of("device");
  given.NewLeaves();
  EXPECT_EQ(advance(), "") << "its writer may be half-way";
  given.NewLeaf("device");
  EXPECT_EQ(advance(), "") << "as it was";
  EXPECT_THAT(advance(), HasSubstr("have new certificates"));
  EXPECT_NE(run.Of("device").certificate, first.certificate);
  EXPECT_EQ(run.Of("device").authority, first.authority);
  EXPECT_EQ(advance(), "");
  // What cannot be used changes nothing, and is said.
  const Identity second = run.Of("device");
  given.Write("reward.key", "none");
  EXPECT_EQ(advance(), "");
  EXPECT_THAT(advance(), HasSubstr("reward.crt and reward.key have to be there, to belong together"));
  EXPECT_EQ(run.Of("device").certificate, second.certificate);
  given.NewLeaf("reward");
  EXPECT_EQ(advance(), "");
  EXPECT_THAT(advance(), HasSubstr("have new certificates"));
  // They are never made anew by the run, whose user hears of their end.
  const Identity third = run.Of("device");
  EXPECT_THAT(advance(seconds(3500)), HasSubstr("the certificates end at 20"));
  EXPECT_EQ(run.Of("device").certificate, third.certificate);
}

TEST(CertificateRenewalTest,
     AnotherAuthorityOfSomebodyElseIsBelievedBeforeItsCertificatesAreShownAndTheOldOneNoMore) {
  Given given;
  const Folder run("run-a");
  RemoveCertificates(run.dir);
  ASSERT_TRUE(TakeCertificates(given.dir, run.dir).ok());
  const Identity old = run.Of("device");
  given.NewAuthority();
  // A controller that is started meanwhile, or takes the run over, goes on with what the workers know.
  const auto resumed = TakeCertificates(given.dir, run.dir);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(run.Of("device").certificate, old.certificate);
  const Server controller(*resumed);
  CertificateRenewal renewal(run.dir, "run-a", kShort, given.dir);
  auto now = system_clock::now();
  ASSERT_EQ(*renewal.Advance(now), "");
  EXPECT_THAT(*renewal.Advance(now), HasSubstr("next authority is believed beside the present one"));
  EXPECT_EQ(run.Of("device").certificate, old.certificate);
  EXPECT_NE(controller.Dial(run.Of("device")), nullptr);
  now += seconds(60);
  EXPECT_THAT(*renewal.Advance(now), HasSubstr("have new certificates"));
  Identity copied = run.Of("device");
  copied.certificate = old.certificate, copied.key = old.key, copied.folder.clear();
  EXPECT_NE(controller.Dial(copied), nullptr) << "those that have not looked yet";
  now += seconds(60);
  EXPECT_EQ(*renewal.Advance(now), "the authority before is believed no more");
  EXPECT_EQ(run.Of("device").authority, x509::Pem(given.authority.certificate.get()));
  EXPECT_TRUE(Within(seconds(60), [&] { return controller.Dial(copied) == nullptr; }));
  EXPECT_NE(controller.Dial(run.Of("device")), nullptr);
  for (int look = 0; look < 3; ++look) EXPECT_EQ(*renewal.Advance(now += seconds(1)), "");
}

TEST(CertificateRenewalTest, ACertificateThatHasExpiredIsRefusedAndNamedWithBothTimes) {
  const Folder run("run-a", {.lifetime = -5});
  const auto mine = ReadIdentity(run.dir + "/device.token");
  EXPECT_EQ(mine.status().code(), StatusCode::kFailedPrecondition);
  for (const char* part :
       {"device.crt: the certificate has expired at 20", "this host's clock says 20", "copy them again"})
    EXPECT_THAT(mine.status().message(), HasSubstr(part));
  // Whoever shows it all the same, and whoever is shown it.
  EXPECT_EQ(Server(run.mine).Dial(run.mine), nullptr);
  const Server listens(run.mine);
  EXPECT_THAT(Why(listens, run.mine), HasSubstr("its certificate has expired at 20"));
}

TEST(CertificateRenewalTest, CertificatesOfTwoJobsAreNamed) {
  const Folder run("run-a"), other("run-b");
  std::filesystem::copy_file(other.dir + "/device.crt", run.dir + "/device.crt",
                             std::filesystem::copy_options::overwrite_existing);
  const auto mixed = ReadIdentity(run.dir + "/device.token");
  EXPECT_EQ(mixed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(mixed.status().message(),
              HasSubstr("device.crt: is a certificate of run 'run-b', and the authority.crt "
                        "beside it, of run 'run-a', has not made it"));
  const Server controller(run.mine);
  EXPECT_EQ(controller.Dial(other.Of("reward")), nullptr);
  EXPECT_EQ(Why(controller, other.Of("reward")),
            "it shows a certificate of run 'run-a', and those beside the token are of run 'run-b'");
  const Identity knows_us{run.mine.authority, other.mine.certificate, other.mine.key};
  EXPECT_THAT(Why(controller, knows_us), HasSubstr("it does not take the certificate beside the token: "));
  EXPECT_EQ(Why(controller, run.Of("reward")), "") << "nothing is wrong";
  EXPECT_EQ(WhyNotBelieved("127.0.0.1:1", run.mine, std::chrono::milliseconds(200)).why, "");
}

}  // namespace
}  // namespace tidepool::workers
