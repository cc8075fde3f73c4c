#include "workers/net/listener.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "workers/data/weights_service.h"
#include "workers/net/rpc_status.h"

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
  while (Open() > 0 && Clock::now() - begin < std::chrono::seconds(60))
    poll(nullptr, 0, 20);  // until the server's own deadlines
  EXPECT_EQ(Open(), 0) << "each has five seconds at most";
  EXPECT_EQ(known->GetState(false), GRPC_CHANNEL_READY) << "whoever showed a token keeps the connection";
  EXPECT_EQ(call(), OkStatus());
}

}  // namespace
}  // namespace tidepool::workers
