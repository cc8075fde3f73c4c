// Every method of every service x every wrong way to call it: refused, and nothing happens. The list of
// methods is read from the services' own descriptors, so a new method without a row here fails.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "proto/control.grpc.pb.h"
#include "workers/data/weights_service.h"
#include "workers/net/certificates.h"
#include "workers/net/hub.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

class RpcSecurityTest : public testing::Test {
 protected:
  // controller, device: what the servers show; none: nothing is encrypted.
  explicit RpcSecurityTest(std::optional<Identity> controller = std::nullopt,
                           std::optional<Identity> device = std::nullopt)
      : tokens_(*JobTokens::Random()), other_(*JobTokens::Random()) {
    HubOptions options;
    options.run_id = "run-a";
    options.build = "tidepool 8 on host x";
    options.identity = std::move(controller);
    auto hub = Hub::Start(
        options, tokens_,
        [this](HubEvent e) {
          if (!std::holds_alternative<HubClosed>(e)) events_.fetch_add(1);
        },
        [this](int64_t, StepNumber, Incarnation,
               int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
          rows_asked_.fetch_add(1);
          return std::make_shared<const std::vector<BatchRow>>();
        });
    EXPECT_TRUE(hub.ok()) << hub.status().ToString();
    hub_ = std::move(*hub);
    auto weights = WeightsServer::Start("127.0.0.1", {tokens_.Token(CallerRole::kDevice), std::move(device)},
                                        1 << 20, [this](const WantedBytes&) -> StatusOr<PublishedBytes> {
                                          weights_asked_.fetch_add(1);
                                          return NotFound("none");
                                        });
    EXPECT_TRUE(weights.ok());
    weights_ = std::move(*weights);
  }

  static v1::Frame Framed(FromWorkerBody body) {
    v1::Frame frame;
    Pack(std::deque<FromWorker>{{0, 0, std::move(body)}}, 0, kFrameBytes, &frame);
    return frame;
  }
  // Calls the method with this token (empty: none) and certificate (none: not encrypted) and returns the
  // code.
  grpc::StatusCode Call(const std::string& method, const std::string& token,
                        const std::optional<Identity>& identity = std::nullopt) {
    const bool control = method.find("Weights") == std::string::npos;
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    const auto credentials = ClientSide(identity, control ? kControllerRole : "device", &args);
    auto channel =
        grpc::CreateCustomChannel(control ? hub_->address() : weights_->address(), credentials, args);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    if (!token.empty()) AddToken(&context, token);
    if (method == "tidepool.v1.Control.Attach") {
      auto stream = v1::Control::NewStub(channel)->Attach(&context);
      stream->Write(Framed(up::Hello{.run_id = "run-a"}));
      stream->WritesDone();
      v1::Frame answer;
      while (stream->Read(&answer)) {
      }
      return stream->Finish().error_code();
    }
    if (method == "tidepool.v1.Control.FetchRows") {
      auto reader = v1::Control::NewStub(channel)->FetchRows(&context, {});
      v1::Frame frame;
      while (reader->Read(&frame)) {
      }
      return reader->Finish().error_code();
    }
    if (method == "tidepool.v1.Control.Meet") {
      v1::MeetReply reply;
      return v1::Control::NewStub(channel)->Meet(&context, {}, &reply).error_code();
    }
    if (method == "tidepool.v1.Control.Renew") {
      v1::JoinReply reply;
      return v1::Control::NewStub(channel)->Renew(&context, {}, &reply).error_code();
    }
    if (method == "tidepool.v1.Rows.Read") {
      auto reader = v1::Rows::NewStub(channel)->Read(&context, {});
      v1::RowBytes frame;
      while (reader->Read(&frame)) {
      }
      return reader->Finish().error_code();
    }
    if (method == "tidepool.v1.Weights.Fetch") {
      auto reader = v1::Weights::NewStub(channel)->Fetch(&context, {});
      v1::WeightsFrame frame;
      while (reader->Read(&frame)) {
      }
      return reader->Finish().error_code();
    }
    ADD_FAILURE() << "no call is written for " << method;
    return grpc::StatusCode::OK;
  }

  static std::vector<std::string> AllMethods() {
    std::vector<std::string> names;
    for (const char* service : {"tidepool.v1.Control", "tidepool.v1.Rows", "tidepool.v1.Weights"}) {
      const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
      for (int i = 0; i < descriptor->method_count(); ++i)
        names.push_back(descriptor->method(i)->full_name());
    }
    return names;
  }

  JobTokens tokens_;
  JobTokens other_;
  std::atomic<int> events_{0}, rows_asked_{0}, weights_asked_{0};
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<WeightsServer> weights_;
};

TEST_F(RpcSecurityTest, EveryMethodRefusesEveryCallerWithoutTheRight) {
  for (const std::string& method : AllMethods()) {
    SCOPED_TRACE(method);
    EXPECT_EQ(Call(method, ""), grpc::StatusCode::UNAUTHENTICATED) << "no token";
    EXPECT_EQ(Call(method, std::string(64, 'a')), grpc::StatusCode::UNAUTHENTICATED) << "wrong token";
    EXPECT_EQ(Call(method, "short"), grpc::StatusCode::UNAUTHENTICATED) << "short token";
    EXPECT_EQ(Call(method, other_.Token(CallerRole::kDevice)), grpc::StatusCode::UNAUTHENTICATED)
        << "token of another job";
    for (const CallerRole role : {CallerRole::kReward, CallerRole::kEnvironment, CallerRole::kOperator}) {
      const grpc::StatusCode code = Call(method, tokens_.Token(role));
      EXPECT_TRUE(code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::UNAUTHENTICATED)
          << "wrong role " << Name(role);
    }
  }
  EXPECT_EQ(events_.load(), 0) << "a refused call reached the controller";
  EXPECT_EQ(rows_asked_.load(), 0);
  EXPECT_EQ(weights_asked_.load(), 0);
  EXPECT_GT(hub_->refused_calls(), 0);
}

// Certificates of a job, in a folder of their own.
struct Certificates {
  explicit Certificates(const std::string& name) : dir(testing::TempDir() + "/certificates_" + name) {
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    const auto made = OpenOrCreateCertificates(dir, name);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
  }
  ~Certificates() { std::filesystem::remove_all(dir); }
  [[nodiscard]] Identity Of(const std::string& role) const {
    auto identity = ReadIdentity(dir + "/" + role + ".token");
    EXPECT_TRUE(identity.ok() && identity->has_value()) << identity.status().ToString();
    return **identity;
  }
  std::string dir;
};

class EncryptedRpcTest : public RpcSecurityTest {
 protected:
  EncryptedRpcTest() : EncryptedRpcTest(std::make_unique<Certificates>("run-a")) {}
  explicit EncryptedRpcTest(std::unique_ptr<const Certificates> mine)
      : RpcSecurityTest(mine->Of(kControllerRole), mine->Of("device")),
        device_(mine->Of("device")),
        reward_(mine->Of("reward")),
        files_(std::move(mine)) {}
  const Identity device_, reward_;
  const std::unique_ptr<const Certificates> files_;  // the servers look at them again and again
};

TEST_F(EncryptedRpcTest, EveryMethodRefusesEveryCallerWithoutTheCertificateAndTheToken) {
  const std::string token = tokens_.Token(CallerRole::kDevice);
  const Identity stranger = Certificates("run-b").Of("device");  // of another authority
  for (const std::string& method : AllMethods()) {
    SCOPED_TRACE(method);
    EXPECT_EQ(Call(method, token), grpc::StatusCode::UNAVAILABLE) << "not encrypted";
    EXPECT_EQ(Call(method, token, Identity{.authority = device_.authority}), grpc::StatusCode::UNAVAILABLE)
        << "no certificate";
    EXPECT_EQ(Call(method, token, stranger), grpc::StatusCode::UNAVAILABLE)
        << "another job's, which does not believe us";
    EXPECT_EQ(Call(method, token, Identity{device_.authority, stranger.certificate, stranger.key}),
              grpc::StatusCode::UNAVAILABLE)
        << "another job's";
    EXPECT_EQ(Call(method, token, reward_), grpc::StatusCode::PERMISSION_DENIED)
        << "another role's certificate";
    EXPECT_EQ(Call(method, "", device_), grpc::StatusCode::UNAUTHENTICATED) << "no token";
    EXPECT_EQ(Call(method, other_.Token(CallerRole::kDevice), device_), grpc::StatusCode::UNAUTHENTICATED)
        << "another job's token";
  }
  EXPECT_EQ(events_.load(), 0) << "a refused call reached the controller";
  EXPECT_EQ(rows_asked_.load(), 0);
  EXPECT_EQ(weights_asked_.load(), 0);
  // Who has both is heard.
  EXPECT_EQ(Call("tidepool.v1.Control.FetchRows", token, device_), grpc::StatusCode::OK);
  EXPECT_EQ(Call("tidepool.v1.Weights.Fetch", token, device_), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(rows_asked_.load() + weights_asked_.load(), 2);
}

TEST_F(EncryptedRpcTest, AWorkerShowsItsTokenToTheControllerOfItsJobAlone) {
  LinkOptions dial;
  dial.address = hub_->address();
  dial.credentials = {tokens_.Token(CallerRole::kDevice), Certificates("run-b").Of("device")};
  dial.hello.run_id = "run-a";
  dial.connect_timeout_s = 600;  // which nobody waits for where another run answers
  const auto link = Link::Connect(dial, [](std::vector<LinkEvent>) {});
  ASSERT_EQ(link.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(
      link.status().message().find("it shows a certificate of run 'run-a', and those beside the token are "
                                   "of run 'run-b'"),
      std::string::npos)
      << link.status().message();
  EXPECT_EQ(hub_->refused_calls(), 0) << "the token was shown";
  // A device's certificate does not make a controller.
  dial.credentials.identity = device_;
  dial.address = weights_->address();
  dial.connect_timeout_s = 1;
  EXPECT_FALSE(Link::Connect(dial, [](std::vector<LinkEvent>) {}).ok());
}

TEST(CertificatesTest, AreKeptWhileTheyHoldAndKeysAreForTheOwnerAlone) {
  const Certificates mine("kept");
  const Identity before = mine.Of("device");
  ASSERT_TRUE(OpenOrCreateCertificates(mine.dir, "kept").ok());
  EXPECT_EQ(mine.Of("device").certificate, before.certificate);
  const std::string key = mine.dir + "/device.key";
  EXPECT_EQ(std::filesystem::status(key).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::permissions(key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_EQ(ReadIdentity(mine.dir + "/device.token").status().code(), StatusCode::kPermissionDenied);
  std::filesystem::remove(key);
  EXPECT_FALSE(ReadIdentity(mine.dir + "/device.token").ok()) << "not as if there were none";
  ASSERT_TRUE(OpenOrCreateCertificates(mine.dir, "kept").ok());
  EXPECT_NE(mine.Of("device").certificate, before.certificate) << "one that is incomplete is made anew";
  // So is what does not belong together.
  const auto replaced = [&](const std::string& file, const std::string& by) {
    const std::string old = mine.Of("device").certificate;
    std::filesystem::copy_file(by, mine.dir + "/" + file, std::filesystem::copy_options::overwrite_existing);
    EXPECT_TRUE(OpenOrCreateCertificates(mine.dir, "kept").ok());
    return mine.Of("device").certificate != old;
  };
  const Certificates stranger("stranger");
  EXPECT_TRUE(replaced("device.key", mine.dir + "/reward.key"));
  EXPECT_TRUE(replaced("authority.crt", stranger.dir + "/authority.crt"));
  EXPECT_TRUE(replaced("reward.crt", stranger.dir + "/reward.crt"));
  RemoveCertificates(mine.dir);
  const auto none = ReadIdentity(mine.dir + "/device.token");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST_F(RpcSecurityTest, ARewardWorkerMayNotSpeakForADevice) {
  auto channel = grpc::CreateChannel(hub_->address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  AddToken(&context, tokens_.Token(CallerRole::kReward));
  auto stream = v1::Control::NewStub(channel)->Attach(&context);
  ASSERT_TRUE(stream->Write(Framed(up::Hello{.run_id = "run-a", .kind = scheduler::WorkerKind::kReward})));
  stream->Write(Framed(up::TrainDone()));
  v1::Frame answer;
  while (stream->Read(&answer)) {
  }
  (void)stream->Finish();
  EXPECT_EQ(events_.load(), 1) << "the Hello alone may reach the controller";
}

TEST_F(RpcSecurityTest, AWorkerOfAnotherRunOrSchemaIsToldSo) {
  struct Case {
    bool wrong_run = false;
    std::string build, told;
  };
  for (const auto& [wrong_run, build, told] :
       {Case{true, "", "run-a"}, Case{false, "", "of a build that does not say which, at ipv4:127.0.0.1"},
        Case{false, "tidepool 9 on host y",
             "this worker is tidepool 9 on host y, the controller is tidepool 8 on host x, and they do not "
             "understand each other: use one build for both"},
        Case{false, "a\nlevel=error" + std::string(3000, 'x'), "this worker is a?level=errorxxx"}}) {
    auto channel = grpc::CreateChannel(hub_->address(), grpc::InsecureChannelCredentials());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    AddToken(&context, tokens_.Token(CallerRole::kDevice));
    if (!build.empty()) AddBuild(&context, build);
    auto stream = v1::Control::NewStub(channel)->Attach(&context);
    v1::Frame hello = Framed(up::Hello{.run_id = wrong_run ? "run-b" : "run-a"});
    if (!wrong_run) hello.set_schema(WireSchema() + 1);
    stream->Write(hello);
    v1::Frame answer;
    while (stream->Read(&answer)) {
    }
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find(told), std::string::npos) << status.error_message();
    EXPECT_LT(status.error_message().size(), 600U) << "what a stranger says is cut";
  }
  EXPECT_EQ(events_.load(), 0);
}

// What is on its way to it fills the stream, so that the refusal behind it never leaves.
TEST(HubTest, ARefusedWorkerThatDoesNotReadHoldsNoThread) {
  const JobTokens tokens = *JobTokens::Random();
  Mailbox<HubEvent> events;
  HubOptions options;
  options.run_id = "run-a";
  auto hub = Hub::Start(options, tokens, [&](HubEvent e) { events.Put(std::move(e)); }, {});
  ASSERT_TRUE(hub.ok());
  auto channel = grpc::CreateChannel((*hub)->address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  AddToken(&context, tokens.Token(CallerRole::kDevice));
  auto stream = v1::Control::NewStub(channel)->Attach(&context);
  v1::Frame hello;
  Pack(std::deque<FromWorker>{{0, 0, up::Hello{.run_id = "run-a"}}}, 0, kFrameBytes, &hello);
  ASSERT_TRUE(stream->Write(hello));
  const auto next = [&](std::chrono::milliseconds patience) {
    auto taken = events.Take(patience, 1);
    return taken.empty() ? HubEvent(HubMessage{}) : std::move(taken.front());
  };
  const HubEvent opened = next(std::chrono::seconds(60));
  ASSERT_TRUE(std::holds_alternative<HubOpened>(opened));
  const ConnectionId connection = std::get<HubOpened>(opened).connection;
  for (int64_t i = 1; i <= 64; ++i) {
    (*hub)->Send(connection,
                 ToWorker{i, 0, down::StartChunk{.prompt = std::vector<int32_t>(1 << 18, 1 << 20)}});
  }
  (*hub)->Refuse(connection, {"no place for it"});
  EXPECT_TRUE(std::holds_alternative<HubClosed>(next(std::chrono::seconds(60))));
  context.TryCancel();
}

TEST(HubTest, ABindThatOthersCanReachIsRefused) {
  for (const char* bind : {"0.0.0.0", "192.0.2.1", "[::]", "10.0.0.1"}) {
    HubOptions options;
    options.bind = bind;
    const auto hub = Hub::Start(options, *JobTokens::Random(), [](HubEvent) {}, {});
    ASSERT_FALSE(hub.ok());
    EXPECT_EQ(hub.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(hub.status().message().find("no certificates"), std::string::npos);
  }
}

TEST(HubTest, AnIpv6AddressHasBrackets) {
  HubOptions options;
  options.advertise = "fd00::7";
  const auto hub = Hub::Start(options, *JobTokens::Random(), [](HubEvent) {}, {});
  ASSERT_TRUE(hub.ok());
  EXPECT_TRUE((*hub)->address().starts_with("[fd00::7]:")) << (*hub)->address();
}

TEST(FetchBytesTest, ShowsNoTokenToAnotherHostWithoutCertificates) {
  const auto fetched = FetchBytes("192.0.2.1:4000", {"token"}, {}, {});
  EXPECT_EQ(fetched.status().code(), StatusCode::kFailedPrecondition) << fetched.status().ToString();
}

TEST(HubTest, APortThatIsTakenIsAClearError) {
  HubOptions options;
  auto first = Hub::Start(options, *JobTokens::Random(), [](HubEvent) {}, {});
  ASSERT_TRUE(first.ok());
  const std::string address = (*first)->address();
  options.port = std::stoll(address.substr(address.rfind(':') + 1));
  const auto second = Hub::Start(options, *JobTokens::Random(), [](HubEvent) {}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("cluster.port"), std::string::npos) << second.status().message();
}

}  // namespace
}  // namespace tidepool::workers
