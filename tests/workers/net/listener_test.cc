#include "workers/net/listener.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "workers/data/weights_service.h"
#include "workers/net/certificates.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    auto server = WeightsServer::Start("127.0.0.1", {"token"}, 1 << 20,
                                       [this](const WantedBytes&) -> StatusOr<PublishedBytes> {
                                         return PublishedBytes{.parts = {bytes_}, .digest = 9};
                                       });
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  ~ListenerTest() override {
    for (const int fd : strangers_) close(fd);
  }
  void Connect(int count) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string address = server_->address();
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      ASSERT_GE(fd, 0);
      ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
      strangers_.push_back(fd);
    }
  }
  // Strangers whose connection the server has not ended.
  int Open() {
    int open = 0;
    for (const int fd : strangers_) {
      pollfd look{fd, POLLRDHUP, 0};
      open += poll(&look, 1, 0) == 0 || (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0 ? 1 : 0;
    }
    return open;
  }
  Status Fetch() {
    std::array<std::byte, 3> to{};
    const device::ByteStore part(to);
    return FetchBytes(server_->address(), {"token"}, {}, {&part, 1}).status();
  }

  std::array<std::byte, 3> bytes_{};
  std::unique_ptr<WeightsServer> server_;
  std::vector<int> strangers_;
};

TEST_F(ListenerTest, TheWayToASourceStaysForTheNextFetchFromThere) {
  SourceConnection over;
  const Credentials mine{"token"};
  const auto way = *over.To(server_->address(), mine);
  for (int i = 0; i < 2; ++i) {
    int64_t came = 0;
    const auto take = [&](const FetchedBytes& bytes) {
      came += bytes.size;
      return OkStatus();
    };
    EXPECT_EQ(workers::Fetch(
                  over, server_->address(), mine, {}, 3,
                  [](uint64_t, const WeightPieces&) { return OkStatus(); }, take),
              OkStatus());
    EXPECT_EQ(came, 3);
    EXPECT_EQ(*over.To(server_->address(), mine), way);
  }
  EXPECT_NE(*over.To("127.0.0.1:1", mine), way) << "of another worker";
  const Credentials certified{"token", Identity{"authority", "certificate", "key"}};
  const auto encrypted = *over.To(server_->address(), certified);
  EXPECT_NE(encrypted, way) << "not encrypted";
  EXPECT_EQ(*over.To(server_->address(), certified), encrypted);
  const Credentials renewed{"token", Identity{"authority", "newer", "key"}};
  EXPECT_NE(*over.To(server_->address(), renewed), encrypted) << "with a certificate that may be over";
}

TEST_F(ListenerTest, StrangersAreCutAndTheKnownAreServed) {
  auto known = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  const auto call = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    AddToken(&context, "token");
    v1::WeightsFrame frame;
    auto reader = v1::Weights::NewStub(known)->Fetch(&context, {});
    while (reader->Read(&frame)) {
    }
    return FromGrpc(reader->Finish());
  };
  ASSERT_EQ(call(), OkStatus());
  Connect(static_cast<int>(3 * Listener::kStrangers));
  const auto begin = Clock::now();
  EXPECT_EQ(Fetch(), OkStatus()) << "a newcomer, behind 192 silent connections";
  // Those before the newcomer were taken in, and most are cut. Where all cores are busy the kernel may bring
  // the end of a connection to its other side a little later than the newcomer's words, but far sooner than
  // the strangers' own time is over.
  const auto few = [&] { return Open() <= static_cast<int>(Listener::kStrangers); };
  for (const auto served = Clock::now(); !few() && (Clock::now() - served < Listener::kPatience / 5 ||
                                                    Clock::now() - begin < Listener::kPatience * 4 / 5);)
    poll(nullptr, 0, 10);
  EXPECT_TRUE(few()) << Open();
  while (Open() > 0 && Clock::now() - begin < std::chrono::seconds(60))
    poll(nullptr, 0, 20);  // until the server's own deadlines
  EXPECT_EQ(Open(), 0) << "each has five seconds at most";
  EXPECT_EQ(known->GetState(false), GRPC_CHANNEL_READY) << "whoever showed a token keeps the connection";
  EXPECT_EQ(call(), OkStatus());
}

TEST_F(ListenerTest, AStrangerIsNotTakenForAKnownOneWithTheSamePort) {
  auto listener = Listener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  grpc::ServerBuilder builder;
  v1::Weights::Service service;
  builder.RegisterService(&service);
  // With TLS: gRPC itself would wait for two minutes for a handshake.
  const std::string dir = testing::TempDir() + "/listener_certificates";
  std::filesystem::create_directories(dir);
  const auto identity = OpenOrCreateCertificates(dir, "run");
  ASSERT_TRUE(identity.ok()) << identity.status().ToString();
  ASSERT_EQ((*listener)->Serve(builder, ServerSide(*identity)), OkStatus());
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string address = (*listener)->address();
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  strangers_.push_back(fd);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  socklen_t length = sizeof(from);
  getsockname(fd, reinterpret_cast<sockaddr*>(&from), &length);
  const auto begin = Clock::now();
  const auto past = [&] { return Clock::now() - begin; };
  // Said until it has certainly been accepted.
  while (Open() > 0 && past() < 13 * Listener::kPatience) {
    if (past() < std::chrono::seconds(1))
      (*listener)->Authenticated("ipv4:127.0.0.1:" + std::to_string(ntohs(from.sin_port)));
    poll(nullptr, 0, 20);
  }
  EXPECT_EQ(Open(), 0);
  EXPECT_LT(past(), 12 * Listener::kPatience);
}

TEST(PeerNameTest, IsThatOfGrpc) {
  sockaddr_storage four{}, six{}, mapped{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(four);
  v4 = {.sin_family = AF_INET, .sin_port = htons(40123), .sin_addr = {htonl(0x0a000001)}, .sin_zero = {}};
  EXPECT_EQ(PeerName(four), PeerName(std::string("ipv4:10.0.0.1:40123")));
  for (auto [text, into] : {std::pair("fe80::1", &six), std::pair("::ffff:10.0.0.1", &mapped)}) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(*into);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(40123);
    ASSERT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
  }
  EXPECT_EQ(PeerName(mapped), PeerName(four));
  EXPECT_EQ(PeerName(six), PeerName(std::string("ipv6:%5Bfe80::1%5D:40123")));
  reinterpret_cast<sockaddr_in6&>(six).sin6_scope_id = 2;
  EXPECT_EQ(PeerName(six), PeerName(std::string("ipv6:%5Bfe80::1%252%5D:40123")));
}

TEST(PeerNameTest, IsThatOfACallOverIpv6) {
  auto server = WeightsServer::Start(
      "::1", {"token"}, 1 << 20,
      [](const WantedBytes&) -> StatusOr<PublishedBytes> { return PublishedBytes{.digest = 9}; });
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status().ToString();
  const std::string address = (*server)->address();
  EXPECT_TRUE(address.starts_with("[::1]:")) << address;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  AddToken(&context, "token");
  auto reader = v1::Weights::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))
                    ->Fetch(&context, {});
  v1::WeightsFrame frame;
  while (reader->Read(&frame)) {
  }
  EXPECT_EQ(FromGrpc(reader->Finish()), OkStatus());
  EXPECT_EQ(PeerName(context.peer()), "ipv6:" + address);
}

}  // namespace
}  // namespace tidepool::workers
