#include "workers/data/host_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
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
  explicit Host(std::string f) : folder(std::move(f)) {
    auto started = WeightsServer::Start("127.0.0.1", {"token"}, 1 << 20,
                                        [this](const WantedBytes& w) -> StatusOr<PublishedBytes> {
                                          auto opened = weights.Open(w.version, w.base);
                                          if (opened.ok() && spoil) spoil(*opened);
                                          return opened;
                                        });
    EXPECT_TRUE(started.ok());
    server = std::move(*started);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() { SharedBlock::RemoveAll(folder); }
  // To this host, and from there into `out`.
  Status Pull(const Host& from, uint64_t digest, std::vector<std::byte>& out,
              const Version& version = kVersion) {
    const Credentials credentials{"token"};
    came = 0;
    TP_RETURN_IF_ERROR(weights.Pull({from.server->address(), credentials}, version, digest,
                                    static_cast<int64_t>(out.size()), [this](int64_t n) { came += n; }));
    return weights.Read(version, std::span(out)).status();
  }

  std::string folder;
  int64_t came = 0;  // bytes over the network, of the last pull
  std::function<void(PublishedBytes&)> spoil;
  const std::shared_ptr<HostWeights> held = std::make_shared<HostWeights>(folder);
  HostWeights& weights = *held;
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
  // The next version, in which one word of a hundred is another.
  Status PublishNext(const Version& version) {
    Rng rng(static_cast<uint64_t>(version.number));
    for (size_t i = 0; i < bytes_.size() / 200; ++i) bytes_[rng.Next() % bytes_.size()] ^= std::byte{1};
    digest_ = PiecesOf(bytes_).Digest();
    return hosts_[0]->weights.Publish(version, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true);
  }
  // Something else than what was published is in the host's shared memory, all versions that are there.
  void Tear(int host, int64_t at = 12345) const {
    for (const char* file : {"/weights-0", "/weights-1"}) {
      const std::string path = hosts_[static_cast<size_t>(host)]->folder + file;
      if (!std::filesystem::exists(path)) continue;
      std::fstream block(path, std::ios::in | std::ios::out | std::ios::binary);
      block.seekp(4096 + at);
      block.write("torn", 4);
    }
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
  const auto opened = successor.Open(kVersion);
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
    EXPECT_EQ(HostWeights(host->folder).Read(kVersion, std::span(second)).ok(), host == hosts_[0]);

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
  const auto opened = none.Open(kVersion);
  ASSERT_TRUE(opened.ok());
  std::vector<std::byte> read = Empty();
  ASSERT_EQ(opened->copy(0, read), OkStatus());
  EXPECT_EQ(read, bytes_);
}

// Steps that are faster than a link: what is read from a host stays there until it is read to its end.
TEST_F(HostWeightsTest, ACopyIsKeptWhileItIsReadHoweverManyFollow) {
  ASSERT_EQ(Publish(), OkStatus());
  HostWeights& host = hosts_[0]->weights;
  const auto publish = [&](int64_t number) {
    bytes_[0] = static_cast<std::byte>(number);
    digest_ = PiecesOf(bytes_).Digest();
    return host.Publish({0, number}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/false);
  };
  const std::vector<std::byte> third = bytes_;
  std::vector<std::byte> read = Empty();
  auto opened = host.Open(kVersion);
  ASSERT_TRUE(opened.ok());
  for (int64_t v = 4; v <= 9; ++v) {
    ASSERT_EQ(publish(v), OkStatus());
    ASSERT_EQ(opened->copy(0, read), OkStatus());
    EXPECT_EQ(read, third);
    ASSERT_TRUE(host.Read({0, v}, std::span(read)).ok());
    EXPECT_EQ(read, bytes_);
    EXPECT_FALSE(host.Read({0, v - 1}, std::span(read)).ok() && v > 4) << "it took the place of the last one";
    EXPECT_EQ(host.held_bytes(), 0) << "both are in shared memory";
  }
  // Two that are read: there is a third place, in this process, and no fourth.
  auto ninth = host.Open({0, 9});
  ASSERT_TRUE(ninth.ok());
  ASSERT_EQ(publish(10), OkStatus());
  EXPECT_EQ(host.held_bytes(), static_cast<int64_t>(bytes_.size()));
  EXPECT_EQ(opened->copy(0, read), OkStatus());
  EXPECT_EQ(ninth->copy(0, read), OkStatus());
  auto tenth = host.Open({0, 10});
  ASSERT_EQ(publish(11), OkStatus());
  EXPECT_EQ(opened->copy(0, read).code(), StatusCode::kUnavailable) << "who still reads the oldest is told";
  EXPECT_EQ(ninth->copy(0, read), OkStatus());
}

// The host's slots load the newest that is whole, while the next one comes.
TEST_F(HostWeightsTest, APullLeavesTheNewestThatIsWhole) {
  ASSERT_EQ(Publish(), OkStatus());
  std::vector<std::byte> out = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out), OkStatus());
  auto reader = hosts_[1]->weights.Open(kVersion);  // of a further host, which is slow
  ASSERT_TRUE(reader.ok());
  for (int64_t v = 4; v <= 6; ++v) {
    ASSERT_EQ(hosts_[0]->weights.Publish({0, v}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true),
              OkStatus());
    hosts_[0]->spoil = [&](PublishedBytes& opened) {
      opened.copy = [&, v, copy = opened.copy](size_t at, std::span<std::byte> to) {
        EXPECT_TRUE(hosts_[1]->weights.Read({0, v - 1}, std::span(out)).ok()) << v;
        return copy(at, to);
      };
    };
    std::vector<std::byte> next = Empty();
    ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, next, {0, v}), OkStatus());
    EXPECT_EQ(next, bytes_);
  }
  EXPECT_EQ(reader->copy(0, out), OkStatus());
}

// Another worker of the host pulls, since the controller asks any: what this one passes on stays as it is.
TEST_F(HostWeightsTest, WhatAProcessPassesOnNoOtherOverwrites) {
  ASSERT_EQ(Publish(), OkStatus());
  std::vector<std::byte> out = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out), OkStatus());
  const std::vector<std::byte> third = bytes_;
  auto reader = hosts_[1]->weights.Open(kVersion);
  ASSERT_TRUE(reader.ok());

  HostWeights other(hosts_[1]->folder);
  const Credentials credentials{"token"};
  for (int64_t v = 4; v <= 7; ++v) {
    bytes_[0] = static_cast<std::byte>(v);
    digest_ = PiecesOf(bytes_).Digest();
    ASSERT_EQ(hosts_[0]->weights.Publish({0, v}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true),
              OkStatus());
    ASSERT_EQ(other.Pull({hosts_[0]->server->address(), credentials}, {0, v}, digest_,
                         static_cast<int64_t>(bytes_.size())),
              OkStatus());
    ASSERT_EQ(reader->copy(0, out), OkStatus());
    EXPECT_EQ(out, third);
    ASSERT_TRUE(other.Read({0, v}, std::span(out)).ok());
    EXPECT_EQ(out, bytes_);
  }
  // Once nobody reads it, its memory is the others', and the first process does not take theirs for its own.
  reader = NotFound("let go of");
  ASSERT_EQ(other.Pull({hosts_[0]->server->address(), credentials}, {0, 7}, digest_,
                       static_cast<int64_t>(bytes_.size())),
            OkStatus());
  for (int64_t v = 8; v <= 9; ++v) {
    ASSERT_EQ(hosts_[0]->weights.Publish({0, v}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true),
              OkStatus());
    ASSERT_EQ(other.Pull({hosts_[0]->server->address(), credentials}, {0, v}, digest_,
                         static_cast<int64_t>(bytes_.size())),
              OkStatus());
  }
  EXPECT_FALSE(hosts_[1]->weights.Read(kVersion, std::span(out)).ok());
  ASSERT_TRUE(hosts_[1]->weights.Read({0, 9}, std::span(out)).ok());
  EXPECT_EQ(out, bytes_);
}

// Whatever tore it: its tag says that it is whole, so nobody would bring it again.
TEST_F(HostWeightsTest, ATornCopyIsBroughtAgain) {
  ASSERT_EQ(Publish(), OkStatus());
  std::vector<std::byte> out = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out), OkStatus());
  // Its own reader finds it, in the process that pulled and in another one.
  HostWeights other(hosts_[1]->folder);
  for (HostWeights* finds : {&hosts_[1]->weights, &other}) {
    Tear(1);
    ASSERT_TRUE(finds->Read(kVersion, std::span(out)).ok());
    ASSERT_NE(out, bytes_);
    finds->LookAgain(kVersion);
    ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out), OkStatus());
    EXPECT_EQ(out, bytes_);
    finds->LookAgain(kVersion);
    EXPECT_TRUE(finds->Read(kVersion, std::span(out)).ok()) << "there is nothing wrong with it";
  }
  // It is about to be passed on.
  Tear(1);
  EXPECT_EQ(other.Open(kVersion).status().code(), StatusCode::kDataLoss);
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out), OkStatus());
  EXPECT_EQ(out, bytes_);
  const Version next{0, 4};
  const auto publish = [&] {
    return hosts_[0]->weights.Publish(next, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true);
  };
  ASSERT_EQ(publish(), OkStatus());
  Tear(0);
  EXPECT_EQ(hosts_[0]->weights.Open(next).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(publish(), OkStatus());
  EXPECT_TRUE(hosts_[0]->weights.Open(next).ok());
}

TEST_F(HostWeightsTest, OnlyWhatChangedGoesToWhoHasAnEarlierVersion) {
  ASSERT_EQ(Publish(), OkStatus());
  std::vector<std::byte> second = Empty(), third = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second), OkStatus());
  ASSERT_EQ(hosts_[2]->Pull(*hosts_[1], digest_, third), OkStatus());
  const auto whole = static_cast<int64_t>(bytes_.size());
  EXPECT_EQ(hosts_[1]->came, whole);
  EXPECT_EQ(hosts_[2]->came, whole);
  for (int64_t v = 4; v <= 6; ++v) {
    ASSERT_EQ(PublishNext({0, v}), OkStatus());
    Status pulled;
    std::thread last([&] { pulled = hosts_[2]->Pull(*hosts_[1], digest_, third, {0, v}); });  // as a chain
    EXPECT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second, {0, v}), OkStatus());
    last.join();
    EXPECT_EQ(pulled, OkStatus());
    EXPECT_EQ(second, bytes_);
    EXPECT_EQ(third, bytes_);
    for (int host : {1, 2}) {
      EXPECT_GT(hosts_[host]->came, 0);
      EXPECT_LT(hosts_[host]->came, whole / 20) << "host " << host << ", version " << v;
    }
  }
  // Another process pulls, whose base the first one has brought to the host.
  HostWeights other(hosts_[1]->folder);
  ASSERT_EQ(PublishNext({0, 7}), OkStatus());
  int64_t came = 0;
  const Credentials credentials{"token"};
  ASSERT_EQ(other.Pull({hosts_[0]->server->address(), credentials}, {0, 7}, digest_, whole,
                       [&](int64_t n) { came += n; }),
            OkStatus());
  EXPECT_LT(came, whole / 20);
  // And that process passes on what it has not brought there.
  hosts_[1]->weights.Forget();
  ASSERT_EQ(hosts_[2]->Pull(*hosts_[1], digest_, third, {0, 7}), OkStatus());
  EXPECT_EQ(third, bytes_);
  EXPECT_LT(hosts_[2]->came, whole / 20);
  // The source has the base no more.
  ASSERT_EQ(PublishNext({0, 8}), OkStatus());
  ASSERT_EQ(PublishNext({0, 9}), OkStatus());
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second, {0, 9}), OkStatus());
  EXPECT_EQ(second, bytes_);
  EXPECT_EQ(hosts_[1]->came, whole);
  // The same number with other weights, as after a controller that lost what it had published.
  bytes_[0] ^= std::byte{1};
  digest_ = PiecesOf(bytes_).Digest();
  ASSERT_EQ(hosts_[0]->weights.Publish({0, 9}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/true),
            OkStatus());
  ASSERT_EQ(PublishNext({0, 10}), OkStatus());
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second, {0, 10}), OkStatus());
  EXPECT_EQ(second, bytes_);
  EXPECT_EQ(hosts_[1]->came, whole);
}

// Of either side: what is wrong is found by the piece's sum, and the rest comes as it is.
TEST_F(HostWeightsTest, WhatChangedOfADamagedBaseIsBroughtWhole) {
  ASSERT_EQ(Publish(), OkStatus());
  std::vector<std::byte> second = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second), OkStatus());
  const auto whole = static_cast<int64_t>(bytes_.size());
  constexpr int64_t kAt = 2 * kPiece + 1000;
  for (const int torn : {0, 1}) {
    SCOPED_TRACE(torn);
    const Version before{0, 3 + torn}, version{0, 4 + torn};
    Tear(torn, kAt);
    ASSERT_EQ(PublishNext(version), OkStatus());
    ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second, version), OkStatus());
    EXPECT_EQ(second, bytes_);
    EXPECT_GT(hosts_[1]->came, whole - 3 * kPiece);
    EXPECT_LT(hosts_[1]->came, whole - kPiece) << "the first two pieces came as what changed";
    EXPECT_EQ(hosts_[1]->weights.Read(before, std::span(second)).ok(), torn == 0)
        << "a torn one is here no more";
  }
  // A source whose base is another one than it says.
  std::vector<std::byte> wrong(bytes_.size());
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    if (opened.base)
      opened.base = [&](size_t at, size_t size, const PublishedBytes::Reader& reader) {
        reader(std::span<const std::byte>(wrong).subspan(at, size));
        return true;
      };
  };
  wrong = bytes_;
  wrong[100] ^= std::byte{8};
  ASSERT_EQ(PublishNext({0, 6}), OkStatus());
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, second, {0, 6}), OkStatus());
  EXPECT_EQ(second, bytes_);
  EXPECT_GT(hosts_[1]->came, whole);
  EXPECT_TRUE(hosts_[1]->weights.Read({0, 5}, std::span(second)).ok()) << "there is nothing wrong with it";
}

// It costs no memory: what is published takes its place, as that of any copy that nobody reads.
TEST_F(HostWeightsTest, ABaseGivesItsPlaceToTheNextVersion) {
  ASSERT_EQ(Publish(), OkStatus());
  const std::vector<std::byte> third = bytes_;
  const WeightsBase base{kVersion, digest_, 2};
  HostWeights& host = hosts_[0]->weights;
  const auto publish = [&](int64_t number) {
    bytes_[0] = static_cast<std::byte>(number);
    digest_ = PiecesOf(bytes_).Digest();
    return host.Publish({0, number}, digest_, std::as_bytes(std::span(bytes_)), /*shared=*/false);
  };
  ASSERT_EQ(publish(4), OkStatus());
  const std::vector<std::byte> fourth = bytes_;
  EXPECT_FALSE(host.Open({0, 4}, {kVersion, base.digest + 1, 2})->base) << "other weights of that number";
  EXPECT_FALSE(host.Open({0, 4}, {{1, 3}, base.digest, 2})->base);
  EXPECT_FALSE(host.Open({0, 4})->base) << "nobody asked";
  {
    const auto opened = host.Open({0, 4}, base);
    ASSERT_TRUE(opened.ok() && opened->base);
    bool same = false;
    const auto look = [&](std::span<const std::byte> bytes) { same = std::ranges::equal(bytes, third); };
    EXPECT_TRUE(opened->base(0, third.size(), look));
    EXPECT_TRUE(same);
    ASSERT_EQ(publish(5), OkStatus());
    EXPECT_EQ(host.held_bytes(), 0) << "both are in shared memory";
    EXPECT_FALSE(opened->base(0, third.size(), look));
    std::vector<std::byte> read = Empty();
    EXPECT_EQ(opened->copy(0, read), OkStatus()) << "what is read is still there";
    EXPECT_EQ(read, fourth);
  }
  // In mid-course: the rest comes as it is.
  std::vector<std::byte> out = Empty();
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out, {0, 5}), OkStatus());
  ASSERT_EQ(PublishNext({0, 6}), OkStatus());
  const uint64_t digest = digest_;
  const std::vector<std::byte> sixth = bytes_;
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    opened.copy = [&, copy = opened.copy](size_t at, std::span<std::byte> to) {
      if (at >= static_cast<size_t>(2 * kPiece) && bytes_ == sixth)
        EXPECT_EQ(PublishNext({0, 7}), OkStatus());
      return copy(at, to);
    };
  };
  ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest, out, {0, 6}), OkStatus());
  EXPECT_EQ(out, sixth);
  EXPECT_GT(hosts_[1]->came, 2 * kPiece);
  EXPECT_LT(hosts_[1]->came, 4 * kPiece);
}

// All is new.
TEST_F(HostWeightsTest, WhatDoesNotPayIsNotTriedForLong) {
  const auto publish = [&](int64_t number) {
    digest_ = PiecesOf(bytes_).Digest();
    return hosts_[0]->weights.Publish({0, number}, digest_, std::as_bytes(std::span(bytes_)),
                                      /*shared=*/true);
  };
  Rng rng(7);
  bytes_.resize(static_cast<size_t>(10 * kPiece));
  const auto renew = [&] {
    for (size_t at = 0; at < bytes_.size(); at += sizeof(uint64_t)) {
      const uint64_t word = rng.Next();
      std::memcpy(&bytes_[at], &word, sizeof(word));
    }
  };
  std::vector<std::byte> out = Empty();
  int64_t asked = 0;
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    if (opened.base)
      opened.base = [&, was = opened.base](size_t at, size_t size, const PublishedBytes::Reader& reader) {
        asked += static_cast<int64_t>(size);
        return was(at, size, reader);
      };
  };
  for (int64_t v = 11; v <= 12; ++v) {
    renew();
    ASSERT_EQ(publish(v), OkStatus());
    ASSERT_EQ(hosts_[1]->Pull(*hosts_[0], digest_, out, {0, v}), OkStatus());
    EXPECT_EQ(out, bytes_);
    EXPECT_EQ(hosts_[1]->came, static_cast<int64_t>(bytes_.size()));
  }
  EXPECT_GE(asked, int64_t{32} << 20);
  EXPECT_LT(asked, int64_t{34} << 20);
}

TEST_F(HostWeightsTest, AReaderDoesNotWaitForWhatDoesNotCome) {
  ASSERT_EQ(Publish(), OkStatus());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(hosts_[0]->weights.Open({0, 2}).status().code(), StatusCode::kNotFound) << "a newer one is here";
  std::vector<std::byte> out = Empty();
  EXPECT_FALSE(hosts_[1]->Pull(*hosts_[0], digest_ + 1, out).ok());
  EXPECT_EQ(hosts_[1]->weights.Open(kVersion).status().code(), StatusCode::kNotFound) << "it failed";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
}

TEST_F(HostWeightsTest, APullThatIsCalledOffEndsAtOnce) {
  ASSERT_EQ(Publish(), OkStatus());
  std::atomic<bool> begun = false, over = false;
  hosts_[0]->spoil = [&](PublishedBytes& opened) {
    opened.copy = [&, copy = opened.copy](size_t at, std::span<std::byte> out) {
      for (int i = 0; i < 6000 && at > 0 && !over; ++i) {  // it sends nothing for a while
        begun = true;
        std::this_thread::sleep_for(milliseconds(10));
      }
      return copy(at, out);
    };
  };
  const Credentials credentials{"token"};
  Status pulled;
  std::jthread pull([&](const std::stop_token& stop) {
    pulled = hosts_[1]->weights.Pull(
        {hosts_[0]->server->address(), credentials}, kVersion, digest_, static_cast<int64_t>(bytes_.size()),
        [](int64_t) {}, stop);
  });
  while (!begun) std::this_thread::sleep_for(milliseconds(1));
  const auto begin = std::chrono::steady_clock::now();
  pull.request_stop();
  pull.join();
  EXPECT_EQ(pulled.code(), StatusCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  over = true;
  hosts_.clear();  // which looks at what ends here
}

}  // namespace
}  // namespace tidepool::workers
