#include "workers/data/host_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "core/base/rng.h"
#include "workers/data/weights_service.h"

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;

constexpr Version kVersion{0, 3};
constexpr int64_t kPiece = int64_t{4} << 20;

// A host: its copies, and the server of a worker on it.
struct Host {
  explicit Host(std::string f) : folder(std::move(f)), weights(folder) {
    auto started = WeightsServer::Start("127.0.0.1", {"token"}, 1 << 20,
                                        [this](const WantedBytes& w) -> StatusOr<PublishedBytes> {
                                          auto opened = weights.Open(w.version, milliseconds(5000));
                                          if (opened.ok() && spoil) spoil(*opened);
                                          return opened;
                                        });
    EXPECT_TRUE(started.ok());
    server = std::move(*started);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() { SharedBlock::RemoveAll(folder); }
  Status Pull(const Host& from, uint64_t digest, std::vector<std::byte>& out) {
    return weights.Pull(from.server->address(), {"token"}, kVersion, digest, std::span(out));
  }

  std::string folder;
  std::function<void(PublishedBytes&)> spoil;
  HostWeights weights;
  std::unique_ptr<WeightsServer> server;
};

class HostWeightsTest : public testing::Test {
 protected:
  HostWeightsTest() : bytes_(static_cast<size_t>(5 * kPiece + 8 * 1000)) {
    Rng rng(3);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(rng.Next());
    digest_ = PiecesOf(bytes_).Digest();
    for (int i = 0; i < 3; ++i) {
      hosts_.push_back(std::make_unique<Host>(
          SharedBlock::FolderOf("host-" + std::to_string(i) + "-" + std::to_string(getpid()), "secret")));
    }
  }
  Status Publish() {
    return hosts_[0]->weights.Publish(kVersion, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true);
  }
  std::vector<std::byte> Empty() const { return std::vector<std::byte>(bytes_.size()); }

  std::vector<std::byte> bytes_;
  uint64_t digest_ = 0;
  std::vector<std::unique_ptr<Host>> hosts_;
};

// The third host has the first pieces before the second one has the last: the trainer holds these back until
// then.
TEST_F(HostWeightsTest, PiecesArePassedOnWhileOthersStillCome) {
  ASSERT_EQ(Publish(), OkStatus());
  std::atomic<bool> last_of_chain_has_some = false;
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    opened.copy = [&, copy = opened.copy](size_t at, std::span<std::byte> out) {
      for (int i = 0; i < 2000 && at >= static_cast<size_t>(3 * kPiece) && !last_of_chain_has_some; ++i)
        std::this_thread::sleep_for(milliseconds(10));
      return copy(at, out);
    };
  };
  hosts_[1]->spoil = [&](PublishedBytes& opened) {
    opened.copy = [&, copy = opened.copy](size_t at, std::span<std::byte> out) {
      Status copied = copy(at, out);
      if (at >= static_cast<size_t>(kPiece)) last_of_chain_has_some = true;
      return copied;
    };
  };
  std::vector<std::byte> second = Empty(), third = Empty();
  Status pulled;
  std::thread last(
      [&] { pulled = hosts_[2]->Pull(*hosts_[1], digest_, third); });  // before its source begins
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second), OkStatus());
  last.join();
  EXPECT_EQ(pulled, OkStatus());
  EXPECT_TRUE(last_of_chain_has_some);
  EXPECT_EQ(second, bytes_);
  EXPECT_EQ(third, bytes_);

  // The host's other workers find it in shared memory, and another process may serve it.
  const HostWeights other(hosts_[1]->folder);
  std::vector<std::byte> read = Empty();
  ASSERT_TRUE(other.Read(kVersion, std::span(read)).ok());
  EXPECT_EQ(*other.Read(kVersion, std::span(read)), digest_);
  EXPECT_EQ(read, bytes_);
  HostWeights successor(hosts_[1]->folder);
  const auto opened = successor.Open(kVersion, milliseconds(0));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->pieces.Digest(), digest_);
}

TEST_F(HostWeightsTest, APieceThatIsNotWhatWasPublishedGoesNoFurther) {
  ASSERT_EQ(Publish(), OkStatus());
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    opened.copy = [copy = opened.copy](size_t at, std::span<std::byte> out) {
      TP_RETURN_IF_ERROR(copy(at, out));
      if (at >= static_cast<size_t>(2 * kPiece)) out.front() ^= std::byte{1};
      return OkStatus();
    };
  };
  std::vector<std::byte> second = Empty(), third = Empty();
  Status pulled;
  std::thread last([&] { pulled = hosts_[2]->Pull(*hosts_[1], digest_, third); });
  EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second).code(), StatusCode::kDataLoss);
  last.join();
  EXPECT_FALSE(pulled.ok());
  for (const auto& host : hosts_)
    EXPECT_EQ(HostWeights(host->folder).Open(kVersion, milliseconds(0)).ok(), host == hosts_[0]);

  // A source that lists the sums of what it sends, which is not what was published.
  hosts_[0]->spoil = [&](PublishedBytes& opened) { opened.pieces.sums[1] ^= 1; };
  EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second).code(), StatusCode::kDataLoss);
  hosts_[0]->spoil = nullptr;
  EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_ + 1, second).code(), StatusCode::kDataLoss);
  EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second), OkStatus());
}

TEST_F(HostWeightsTest, WithoutRoomInSharedMemoryTheCopyIsTheProcessesOwn) {
  HostWeights none("/proc/no-folder-can-be-made-here");
  EXPECT_FALSE(none.Publish(kVersion, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true).ok());
  ASSERT_EQ(none.Publish(kVersion, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/false), OkStatus());
  EXPECT_EQ(none.held_bytes(), static_cast<int64_t>(bytes_.size()));
  const auto opened = none.Open(kVersion, milliseconds(0));
  ASSERT_TRUE(opened.ok());
  std::vector<std::byte> read = Empty();
  ASSERT_EQ(opened->copy(0, read), OkStatus());
  EXPECT_EQ(read, bytes_);
  // Two newer versions take its place: who still reads is told.
  for (const int64_t v : {4, 5})
    ASSERT_EQ(none.Publish({0, v}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/false), OkStatus());
  EXPECT_EQ(opened->copy(0, read).code(), StatusCode::kUnavailable);
  EXPECT_EQ(none.held_bytes(), 2 * static_cast<int64_t>(bytes_.size()));
}

}  // namespace
}  // namespace tidepool::workers
