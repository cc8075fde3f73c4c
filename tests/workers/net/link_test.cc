#include "workers/net/link.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "workers/net/hub.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

using namespace std::chrono_literals;

struct Ends {
  JobTokens tokens = *JobTokens::Random();
  Mailbox<HubEvent> at_hub;
  Mailbox<LinkEvent> at_worker;
  std::vector<BatchRow> rows;
  const std::shared_ptr<comm::RendezvousTable> table = std::make_shared<comm::RendezvousTable>();
  std::unique_ptr<Hub> hub;
  std::atomic<int> frames{0};  // of commands
  std::atomic<bool> frozen{false};
  std::unique_ptr<Link> link;

  Ends() {
    HubOptions options;
    options.run_id = "run";
    options.max_frame_bytes = 4096;
    hub = std::move(*Hub::Start(
        options, tokens, [this](HubEvent e) { at_hub.Put(std::move(e)); },
        [this](int64_t lease, StepNumber, Incarnation,
               int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
          if (lease == 9) {  // a controller that does not answer
            const auto until = std::chrono::steady_clock::now() + 60s;
            while (frozen && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(10ms);
          }
          if (lease != 7) return NotFound("lease is not open");
          return std::make_shared<const std::vector<BatchRow>>(rows);
        },
        [this](const std::string& meeting, Incarnation) -> StatusOr<std::shared_ptr<comm::RendezvousTable>> {
          if (meeting != "1-1") return NotFound("the training group is over");
          return table;
        }));
    LinkOptions dial;
    dial.address = hub->address();
    dial.credentials.token = tokens.Token(CallerRole::kDevice);
    dial.hello.run_id = "run";
    dial.hello.place = 3;
    auto made = Link::Connect(dial, [this](std::vector<LinkEvent> e) {
      ++frames;
      at_worker.PutAll(std::move(e));
    });
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    link = std::move(*made);
    link->SetPermit(5, 1);
  }
  // The session of the first connection, as the controller's end keeps it.
  std::optional<ConnectionId> Attach() {
    const auto opened = Next<HubOpened>(at_hub);
    if (!opened) return std::nullopt;
    EXPECT_EQ(opened->hello.place, 3);
    hub->Send(opened->connection, ToWorker{0, 0, down::Attached{1, 0}});
    const auto attached = Next<Command>(at_worker);
    if (!attached || !std::holds_alternative<down::Attached>(attached->body)) return std::nullopt;
    link->Begin(attached->ctl_epoch);
    return opened->connection;
  }
  template <typename T, typename Box>
  static std::optional<T> Next(Box& box) {
    for (int i = 0; i < 600; ++i) {
      for (auto& e : box.Take(100ms, 1)) {
        if (auto* t = std::get_if<T>(&e)) return std::move(*t);
        if constexpr (std::is_same_v<Box, Mailbox<LinkEvent>>) {
          if (auto* closed = std::get_if<LinkClosed>(&e)) ADD_FAILURE() << "the link closed: " << closed->why;
        } else {
          if (auto* closed = std::get_if<HubClosed>(&e))
            ADD_FAILURE() << "the connection closed: " << closed->why;
        }
      }
    }
    return std::nullopt;
  }
};

// A row of data may have a field of megabytes, and gRPC takes four.
TEST(LinkTest, MessagesThatAreLargerThanGrpcTakesArrive) {
  Ends ends;
  const auto connection = ends.Attach();
  ASSERT_TRUE(connection);
  down::StartChunk chunk;
  chunk.prompt.assign(3000000, 7);
  ends.hub->Send(*connection, ToWorker{1, 0, chunk});
  const auto command = ends.Next<Command>(ends.at_worker);
  ASSERT_TRUE(command);
  EXPECT_EQ(std::get<down::StartChunk>(command->body).prompt, chunk.prompt);
  up::StepTokens said;
  said.chunks.emplace_back().tokens.ids.assign(2000000, 8);
  ends.link->Send(said);
  const auto message = ends.Next<HubMessage>(ends.at_hub);
  ASSERT_TRUE(message);
  EXPECT_EQ(std::get<up::StepTokens>(message->message.body).chunks[0].tokens.ids, said.chunks[0].tokens.ids);
}

int64_t ThreadsOfThisProcess() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// A controller with a thousand workers has a few threads. A link has one, which dials, in its worker's
// process.
TEST(LinkTest, AConnectionTakesNoThreadOfTheHub) {
  Ends ends;
  ASSERT_TRUE(ends.Attach());
  LinkOptions dial;
  dial.address = ends.hub->address();
  dial.credentials.token = ends.tokens.Token(CallerRole::kDevice);
  dial.hello.run_id = "run";
  constexpr int64_t kLinks = 48;
  const int64_t before = ThreadsOfThisProcess();
  std::vector<std::unique_ptr<Link>> links;
  for (int64_t i = 0; i < kLinks; ++i) {
    auto made = Link::Connect(dial, [](const std::vector<LinkEvent>&) {});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    links.push_back(std::move(*made));
    ASSERT_TRUE(ends.Next<HubOpened>(ends.at_hub));
  }
  EXPECT_LE(ThreadsOfThisProcess() - before, kLinks + 16);  // 16: gRPC's own, which do not grow with them
}

TEST(LinkTest, MessagesKeepOrderAndContentBothWays) {
  Ends ends;
  const auto connection = ends.Attach();
  ASSERT_TRUE(connection.has_value());
  down::StartChunk chunk;
  chunk.slot = {1};
  chunk.epoch = {4};
  chunk.tid = {12, 1, 5};
  chunk.prompt = {1, 2, 3};
  chunk.generated = {9};
  chunk.version = {2, 17};
  chunk.greedy = true;
  ends.hub->Send(*connection,
                 ToWorker{1, 0, down::Welcome{{5}, 3, {{3}}, 1.5, "name: x", "/run", "run", "/model"}});
  ends.hub->Send(*connection, ToWorker{2, 0, chunk});
  ends.hub->Send(*connection, ToWorker{2, 0, chunk});  // again: it is taken once
  ends.hub->Send(*connection, ToWorker{3, 0, down::ForgetGroup{.gid = {8}}});
  const auto welcome = Ends::Next<Command>(ends.at_worker);
  ASSERT_TRUE(welcome && std::holds_alternative<down::Welcome>(welcome->body));
  EXPECT_EQ(std::get<down::Welcome>(welcome->body).inc, Incarnation{5});
  const auto start = Ends::Next<Command>(ends.at_worker);
  ASSERT_TRUE(start && std::holds_alternative<down::StartChunk>(start->body));
  const auto& got = std::get<down::StartChunk>(start->body);
  EXPECT_EQ(got.tid, chunk.tid);
  EXPECT_EQ(got.prompt, chunk.prompt);
  EXPECT_EQ(got.version, chunk.version);
  EXPECT_EQ(got.epoch, chunk.epoch);
  EXPECT_TRUE(got.greedy);
  const auto behind = Ends::Next<Command>(ends.at_worker);
  ASSERT_TRUE(behind && std::holds_alternative<down::ForgetGroup>(behind->body));

  for (int i = 0; i < 200; ++i) {
    up::StepTokens step;
    up::ChunkDelta delta;
    delta.tid = {i, 0, 1};
    delta.tokens.ids = {i, i + 1};
    delta.tokens.logprobs = {-0.5F, -0.25F};
    delta.tokens.versions = {{{0, 3}, 2}};
    delta.ended = i % 2 == 0;
    delta.end = scheduler::event::ChunkEnd::kLength;
    step.chunks.push_back(delta);
    ends.link->Send(std::move(step));
  }
  for (int i = 0; i < 200; ++i) {
    const auto message = Ends::Next<HubMessage>(ends.at_hub);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->message.seq, i + 1);
    EXPECT_EQ(message->message.ack, 3);
    const auto& step = std::get<up::StepTokens>(message->message.body);
    ASSERT_EQ(step.chunks.size(), 1u);
    EXPECT_EQ(step.chunks[0].tid.ordinal, i);
    EXPECT_EQ(step.chunks[0].tokens.ids, (std::vector<int32_t>{i, i + 1}));
    EXPECT_EQ(step.chunks[0].ended, i % 2 == 0);
  }
}

// A worker that is given many chunks at once has them in one engine step; and one frame costs less than many.
TEST(LinkTest, WhatIsHeldTogetherArrivesTogetherAndInOrder) {
  Ends ends;
  const auto connection = ends.Attach();
  ASSERT_TRUE(connection.has_value());
  ends.frames = 0;
  constexpr int kChunks = 300;
  {
    const auto hold = ends.hub->Hold();
    const auto inner = ends.hub->Hold();
    for (int i = 0; i < kChunks; ++i) {
      down::StartChunk chunk;
      chunk.tid = {i, 0, 0};
      chunk.prompt.assign(500, i);  // about 600 kB in all: three frames
      ends.hub->Send(*connection, ToWorker{i + 1, 0, std::move(chunk)});
    }
    EXPECT_TRUE(ends.at_worker.TakeAll(50ms).empty());
  }
  for (int i = 0; i < kChunks; ++i) {
    const auto got = Ends::Next<Command>(ends.at_worker);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(std::get<down::StartChunk>(got->body).tid.ordinal, i);
    EXPECT_EQ(std::get<down::StartChunk>(got->body).prompt.size(), 500u);
  }
  EXPECT_LE(ends.frames, 4);
  EXPECT_GE(ends.frames, 2);
}

TEST(LinkTest, RowsOfALeaseComeWholeInSmallFrames) {
  Ends ends;
  ASSERT_TRUE(Ends::Next<HubOpened>(ends.at_hub).has_value());
  for (int i = 0; i < 300; ++i) {
    BatchRow row;
    row.gid = {i / 8};
    row.trajectory.tid = {i, 0, 2};
    row.trajectory.att = 0;
    row.trajectory.prompt = sample::PromptSegment(std::vector<int32_t>(20, i));
    row.trajectory.segments = {{.ids = std::vector<int32_t>(30, i + 1),
                                .logprobs = std::vector<float>(30, -1.0F),
                                .versions = {{{0, 1}, 30}}}};
    row.without_loss = {{0, 1}};
    row.reward = i * 0.5;
    ends.rows.push_back(row);
  }
  const auto rows = ends.link->FetchRows(7, {3}, 0);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 300u);
  EXPECT_EQ((*rows)[299].trajectory, ends.rows[299].trajectory);
  EXPECT_EQ((*rows)[299].without_loss, ends.rows[299].without_loss);
  EXPECT_EQ((*rows)[299].reward, 149.5);
  EXPECT_EQ(ends.link->FetchRows(8, {3}, 0).status().code(), StatusCode::kNotFound);
}

TEST(LinkTest, RanksMeetAtTheController) {
  Ends ends;
  ASSERT_TRUE(Ends::Next<HubOpened>(ends.at_hub).has_value());
  const auto meeting = ends.link->MeetingAt("1-1");
  const std::string bytes("\0\xff", 2);
  ASSERT_TRUE(meeting->Set("mine", bytes).ok());
  EXPECT_EQ(ends.table->Get({"mine"}, 0ms)->front(), bytes);
  EXPECT_EQ(*meeting->Add("n", 2), 2);
  EXPECT_EQ(*meeting->Add("n", 3), 5);
  EXPECT_EQ(meeting->Get({"mine", "theirs"}, 0ms).status().code(), StatusCode::kDeadlineExceeded);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(meeting->Get({"theirs"}, 1300ms).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1300ms);
  {
    std::jthread other([&] {
      std::this_thread::sleep_for(1200ms);  // longer than one question waits
      EXPECT_TRUE(ends.table->Set("theirs", "2").ok());
    });
    const auto both = meeting->Get({"theirs", "mine"}, 30s);
    ASSERT_TRUE(both.ok()) << both.status().message();
    EXPECT_EQ(*both, (std::vector<std::string>{"2", bytes}));
  }
  EXPECT_EQ(meeting->Set("k", std::string((1 << 20) + 1, 'v')).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ends.link->MeetingAt("1-2")->Get({"mine"}, 30s).status().code(), StatusCode::kNotFound);
  // Nobody answers any more.
  ends.hub->Stop();
  const auto ended = std::chrono::steady_clock::now();
  EXPECT_FALSE(meeting->Get({"never"}, 500ms).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - ended, 60s);
}

// Long contexts with routing pass any limit of a message: 10 k tokens of a large mixture are 4 MiB.
TEST(LinkTest, ARowThatIsLargerThanAnyMessageComesWhole) {
  Ends ends;
  ASSERT_TRUE(Ends::Next<HubOpened>(ends.at_hub).has_value());
  for (int i = 0; i < 3; ++i) {
    BatchRow row;
    row.trajectory.tid = {i, 0, 0};
    row.trajectory.att = 0;
    row.trajectory.prompt = sample::PromptSegment({1, 2, 3});
    const int n = i == 1 ? 10'000 : 10;
    row.trajectory.segments = {{.ids = std::vector<int32_t>(static_cast<size_t>(n), i + 1),
                                .logprobs = std::vector<float>(static_cast<size_t>(n), -1.0F),
                                .versions = {{{0, 1}, n}},
                                .routing = std::string(static_cast<size_t>(n) * 768, static_cast<char>(i))}};
    ends.rows.push_back(row);
  }
  const auto rows = ends.link->FetchRows(7, {3}, 0);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ((*rows)[i].trajectory, ends.rows[i].trajectory) << i;
}

// A trainer that waits for a frozen controller's rows could not go on with its successor.
TEST(LinkTest, AQuestionEndsWithItsConnection) {
  Ends ends;
  const auto first = ends.Attach();
  ASSERT_TRUE(first.has_value());
  ends.frozen = true;
  const auto begun = std::chrono::steady_clock::now();
  std::jthread cut([&] {
    std::this_thread::sleep_for(200ms);
    ends.hub->Close(*first, "cut");
  });
  EXPECT_EQ(ends.link->FetchRows(9, {3}, 0).status().code(), StatusCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 60s);
  ends.frozen = false;
}

// The session goes on over the next connection: what the first one lost is said again, once.
TEST(LinkTest, AConnectionThatBreaksLosesNothing) {
  Ends ends;
  const auto first = ends.Attach();
  ASSERT_TRUE(first.has_value());
  ends.hub->Send(*first, ToWorker{1, 0, down::ForgetGroup{.gid = {1}}});
  ASSERT_TRUE(Ends::Next<Command>(ends.at_worker).has_value());
  ends.link->Send(up::Granted{.slot = {1}, .epoch = {1}});
  ASSERT_TRUE(Ends::Next<HubMessage>(ends.at_hub).has_value());
  ends.hub->Close(*first, "cut");
  ends.link->Send(up::Granted{.slot = {2}, .epoch = {1}});
  std::optional<HubOpened> again;
  for (int i = 0; i < 600 && !again; ++i) {
    for (HubEvent& e : ends.at_hub.Take(100ms, 1)) {
      if (auto* opened = std::get_if<HubOpened>(&e)) again = std::move(*opened);
    }
  }
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->hello.ctl_epoch, 1);
  EXPECT_EQ(again->hello.received, 1);
  ends.hub->Send(again->connection, ToWorker{0, 0, down::Attached{1, 1}});  // it took the first message
  ends.hub->Send(again->connection, ToWorker{1, 0, down::ForgetGroup{.gid = {1}}});
  ends.hub->Send(again->connection, ToWorker{2, 0, down::ForgetGroup{.gid = {2}}});
  const auto message = Ends::Next<HubMessage>(ends.at_hub);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->message.seq, 2);
  const auto command = Ends::Next<Command>(ends.at_worker);
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(std::get<down::ForgetGroup>(command->body).gid, GroupId{2});
}

TEST(LinkTest, ARefusedWorkerIsToldWhyAndItsConnectionIsClosed) {
  Ends ends;
  const auto opened = Ends::Next<HubOpened>(ends.at_hub);
  ASSERT_TRUE(opened.has_value());
  ends.hub->Refuse(opened->connection, {"no place for it"});
  std::optional<LinkClosed> closed;
  for (int i = 0; i < 600 && !closed; ++i) {
    for (LinkEvent& e : ends.at_worker.Take(100ms, 1)) {
      if (auto* c = std::get_if<LinkClosed>(&e)) closed = *c;
    }
  }
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->why, "no place for it");
  EXPECT_TRUE(Ends::Next<HubClosed>(ends.at_hub).has_value());
}

TEST(LinkTest, TheWorkerLearnsThatItsControllerIsGone) {
  Ends ends;
  ASSERT_TRUE(Ends::Next<HubOpened>(ends.at_hub).has_value());
  ends.hub->Stop();
  EXPECT_TRUE(Ends::Next<LinkClosed>(ends.at_worker).has_value());
}

TEST(LinkTest, TheControllerLearnsThatItsWorkerIsGone) {
  Ends ends;
  ASSERT_TRUE(Ends::Next<HubOpened>(ends.at_hub).has_value());
  ends.link.reset();
  EXPECT_TRUE(Ends::Next<HubClosed>(ends.at_hub).has_value());
}

// Why it is refused comes with the end of the stream. Every try counts: what came of it was a race.
TEST(LinkTest, AWorkerThatDoesNotBelongHereIsToldWhyAtOnce) {
  Ends ends;
  LinkOptions dial;
  dial.address = ends.hub->address();
  for (int i = 0; i < 60; ++i) {
    dial.credentials.token = ends.tokens.Token(i % 3 == 0 ? CallerRole::kReward : CallerRole::kDevice);
    if (i % 3 == 1) dial.credentials.token = std::string(64, 'a');
    dial.hello.run_id = i % 3 == 2 ? "runaway" : "run";
    Mailbox<LinkEvent> at_worker;
    auto link = Link::Connect(dial, [&](std::vector<LinkEvent> e) { at_worker.PutAll(std::move(e)); });
    std::string why = link.status().message();
    if (link.ok()) {
      const auto closed = Ends::Next<LinkClosed>(at_worker);
      ASSERT_TRUE(closed.has_value()) << "it dials again and again";
      why = closed->why;
    }
    const char* expected[] = {"a token for reward may not attach a device worker", "not one of this job's",
                              "controller of run run, and the worker is to join run runaway"};
    EXPECT_NE(why.find(expected[i % 3]), std::string::npos) << why;
  }
}

// Workers that a supervisor starts together with their controller.
TEST(LinkTest, TheControlFileIsReadUntilTheControllerHasWrittenIt) {
  Ends ends;
  LinkOptions dial;
  dial.address = "127.0.0.1:1";
  dial.credentials.token = ends.tokens.Token(CallerRole::kDevice);
  dial.hello.run_id = "run";
  dial.control_file = testing::TempDir() + "link_test_control.json";
  std::remove(dial.control_file.c_str());
  const std::jthread controller([&] {
    std::this_thread::sleep_for(100ms);
    std::ofstream(dial.control_file) << R"({"address": ")" << ends.hub->address() << "\"}";
  });
  const auto link = Link::Connect(dial, [](std::vector<LinkEvent>) {});
  EXPECT_TRUE(link.ok()) << link.status().ToString();
}

// A road to `port` over which every byte is on its way for `delay`, in both directions.
class FarRoad {
 public:
  FarRoad(int port, std::chrono::milliseconds delay)
      : to_(port), delay_(delay), listens_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in here = At(0);
    socklen_t size = sizeof here;
    TP_CHECK(bind(listens_, reinterpret_cast<sockaddr*>(&here), size) == 0 && listen(listens_, 8) == 0);
    getsockname(listens_, reinterpret_cast<sockaddr*>(&here), &size);
    port_ = ntohs(here.sin_port);
    carries_ = std::jthread([this](const std::stop_token& stop) { Carry(stop); });
  }
  ~FarRoad() {
    carries_.request_stop();
    carries_.join();  // waits: it looks at the token every few milliseconds
    for (const auto& [from, to] : roads_) close(from);
    close(listens_);
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Piece {
    Clock::time_point due;
    int to;
    std::string bytes;  // empty: the end
  };
  static sockaddr_in At(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(port));
    return at;
  }
  void Carry(const std::stop_token& stop) {
    std::deque<Piece> under_way;
    while (!stop.stop_requested()) {
      std::vector<pollfd> polled = {{listens_, POLLIN, 0}};
      for (const auto& [from, to] : roads_) polled.push_back({from, POLLIN, 0});
      poll(polled.data(), polled.size(), 5);
      for (const pollfd& fd : polled) {
        if (fd.revents == 0) continue;
        if (fd.fd == listens_) {
          const int near = accept(listens_, nullptr, nullptr), far = socket(AF_INET, SOCK_STREAM, 0);
          const sockaddr_in there = At(to_);
          TP_CHECK(connect(far, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0);
          roads_[near] = far;
          roads_[far] = near;
          continue;
        }
        char bytes[1 << 14];
        const ssize_t n = recv(fd.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0)
          under_way.push_back({Clock::now() + delay_, roads_.at(fd.fd), {bytes, static_cast<size_t>(n)}});
        if (n == 0) {
          under_way.push_back({Clock::now() + delay_, roads_.at(fd.fd), ""});
          ended_.push_back(fd.fd);
          roads_.erase(fd.fd);
        }
      }
      while (!under_way.empty() && under_way.front().due <= Clock::now()) {
        const Piece piece = std::move(under_way.front());
        under_way.pop_front();
        if (piece.bytes.empty()) shutdown(piece.to, SHUT_WR);
        if (!piece.bytes.empty()) (void)send(piece.to, piece.bytes.data(), piece.bytes.size(), MSG_NOSIGNAL);
      }
    }
    for (const int fd : ended_) close(fd);
  }

  const int to_;
  const std::chrono::milliseconds delay_;
  const int listens_;
  int port_ = 0;
  std::map<int, int> roads_;  // from a socket to the other one
  std::vector<int> ended_;
  std::jthread carries_;
};

// After two seconds it began anew, for ever.
TEST(LinkTest, AConnectionThatIsLongOnItsWayIsLetCome) {
  Ends ends;
  const std::string at = ends.hub->address();
  const FarRoad road(std::stoi(at.substr(at.rfind(':') + 1)), 2300ms);
  LinkOptions dial;
  dial.address = road.address();
  dial.credentials.token = ends.tokens.Token(CallerRole::kDevice);
  dial.hello.run_id = "run";
  dial.connect_timeout_s = 120;
  const auto made = Link::Connect(dial, [](const std::vector<LinkEvent>&) {});
  EXPECT_TRUE(made.ok()) << made.status().ToString();
}

TEST(LinkTest, NobodyAtTheAddressIsAClearError) {
  LinkOptions dial;
  dial.address = "127.0.0.1:1";
  dial.connect_timeout_s = 0.2;
  const auto link = Link::Connect(dial, [](std::vector<LinkEvent>) {});
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tidepool::workers
