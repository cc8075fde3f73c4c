#include "workers/side/http_connections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/workers/side/http_double.h"

namespace tidepool::workers {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Connections that do not end by their age, so that a slow machine counts the same.
std::unique_ptr<HttpConnections> ConnectTo(uint16_t port, std::chrono::nanoseconds life = hours(1)) {
  return std::make_unique<HttpConnections>(HttpAddress{"127.0.0.1", std::to_string(port)},
                                           HostLookup("127.0.0.1"), life);
}

StatusOr<HttpAnswer> Ask(HttpConnections& connections, const std::string& body = "{}",
                         std::chrono::nanoseconds patience = seconds(60)) {
  return connections.Post({.body = body}, Clock::now() + patience, {});
}

std::string Echo(const std::string& body) { return HttpText(200, body); }

TEST(HttpConnectionsTest, CallersShareAConnectionByTurnsAndOneThatFindsNoneOpensItsOwn) {
  HttpDouble turns(Echo, {.keeps = true});
  const auto one = ConnectTo(turns.port);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Ask(*one, std::to_string(i)).value().body, std::to_string(i));
  EXPECT_EQ(turns.accepted, 1);

  std::barrier together(4);  // each round has four calls under way at once
  HttpDouble crowd(
      [&](const std::string& body) {
        together.arrive_and_wait();
        return Echo(body);
      },
      {.keeps = true});
  const auto four = ConnectTo(crowd.port);
  {
    std::vector<std::jthread> callers;
    for (int c = 0; c < 4; ++c) {
      callers.emplace_back([&, c] {
        for (int i = 0; i < 25; ++i) EXPECT_EQ(Ask(*four, std::to_string(c)).value().body, std::to_string(c));
      });
    }
  }
  EXPECT_EQ(crowd.accepted, 4);
  EXPECT_EQ(crowd.requests, 100);
}

TEST(HttpConnectionsTest, AServerThatClosesAfterEachAnswerIsAskedOverANewConnection) {
  HttpDouble says([](const std::string&) {
    return std::string("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: 1\r\n\r\na");
  });
  HttpDouble is_old([](const std::string&) { return std::string("HTTP/1.0 200 X\r\n\r\nuntil the end"); });
  HttpDouble says_nothing(Echo);  // and closes all the same
  for (HttpDouble* server : {&says, &is_old, &says_nothing}) {
    const auto connections = ConnectTo(server->port);
    for (int i = 0; i < 20; ++i) {
      const auto answer = Ask(*connections);
      EXPECT_TRUE(answer.ok()) << answer.status().message();
    }
    EXPECT_EQ(server->accepted, 20);
    EXPECT_EQ(server->requests, 20);
  }
}

TEST(HttpConnectionsTest, WhatTheAnswerSaysOfTheConnectionCountsAlsoWhereTheServerLeavesItOpen) {
  for (const char* head : {"HTTP/1.1 200 X\r\nConnection: close\r\n", "HTTP/1.0 200 X\r\n"}) {
    HttpDouble server([&](const std::string&) { return std::string(head) + "Content-Length: 1\r\n\r\na"; },
                      {.keeps = true});
    const auto connections = ConnectTo(server.port);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Ask(*connections).value().body, "a");
    EXPECT_EQ(server.accepted, 3) << head;
  }
  HttpDouble more([](const std::string&) { return HttpText(200, "a") + "what nobody asked for"; },
                  {.keeps = true});
  const auto connections = ConnectTo(more.port);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ask(*connections).value().body, "a");
  EXPECT_EQ(more.accepted, 3) << "the rest is no answer to the next call";
}

TEST(HttpConnectionsTest, AConnectionThatWasClosedWhileIdleCostsNothing) {
  HttpDouble server(Echo, {.keeps = true});
  const auto connections = ConnectTo(server.port);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(Ask(*connections).value().body, "{}");
    EXPECT_EQ(server.accepted, i);
    server.CloseIdle();
  }
  EXPECT_EQ(server.requests, 3);
}

TEST(HttpConnectionsTest, ACallThatMeetsTheEndOfAKeptConnectionIsMadeOnceMore) {
  std::atomic<int> asked = 0;
  HttpDouble server([&](const std::string& body) { return ++asked == 2 ? "" : Echo(body); }, {.keeps = true});
  const auto connections = ConnectTo(server.port);
  EXPECT_EQ(Ask(*connections, "first").value().body, "first");
  EXPECT_EQ(Ask(*connections, "second").value().body, "second");
  EXPECT_EQ(server.accepted, 2);
  EXPECT_EQ(server.requests, 3);
}

TEST(HttpConnectionsTest, ANewConnectionThatIsClosedOrAnAnswerThatIsCutIsAFailure) {
  std::atomic<int> asked = 0;
  HttpDouble closes([&](const std::string& body) { return ++asked == 1 ? Echo(body) : ""; }, {.keeps = true});
  const auto connections = ConnectTo(closes.port);
  EXPECT_TRUE(Ask(*connections).ok());
  EXPECT_EQ(Ask(*connections).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(closes.requests, 3) << "once more over a new connection, and not again";

  asked = 0;
  HttpDouble cuts(
      [&](const std::string&) {
        return ++asked == 1 ? HttpText(200, "a") : "HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\na";
      },
      {.keeps = true, .requests_max = 2});
  const auto cut = ConnectTo(cuts.port);
  EXPECT_TRUE(Ask(*cut).ok());
  EXPECT_EQ(Ask(*cut).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(cuts.requests, 2) << "part of an answer came";
}

TEST(HttpConnectionsTest, AServerThatIsStartedAgainIsFoundAndOneThatIsAwayIsAFailure) {
  auto server = std::make_unique<HttpDouble>(Echo, HttpDoubleOptions{.keeps = true});
  const uint16_t port = server->port;
  const auto connections = ConnectTo(port);
  EXPECT_TRUE(Ask(*connections).ok());
  server.reset();
  EXPECT_EQ(Ask(*connections).status().code(), StatusCode::kUnavailable);
  server = std::make_unique<HttpDouble>(Echo, HttpDoubleOptions{.keeps = true, .port = port});
  EXPECT_EQ(Ask(*connections, "again").value().body, "again");
  EXPECT_EQ(server->accepted, 1);
}

TEST(HttpConnectionsTest, EachConnectionLooksUpTheNameAndNoCallOverItDoes) {
  HttpDouble server(Echo, {.keeps = true});
  int lookups = 0;
  HttpConnections connections(
      {"judge", std::to_string(server.port)},
      HostLookup("judge",
                 [&]() -> StatusOr<std::vector<std::string>> {
                   // At first where nobody listens: the server has moved.
                   return std::vector<std::string>{++lookups == 1 ? "127.0.0.2" : "127.0.0.1"};
                 }),
      hours(1));
  EXPECT_EQ(Ask(connections).status().code(), StatusCode::kUnavailable);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(connections).ok());
  EXPECT_EQ(lookups, 2);
  server.CloseIdle();
  EXPECT_TRUE(Ask(connections).ok());
  EXPECT_EQ(lookups, 3);
}

TEST(HttpConnectionsTest, ACallOverAKeptConnectionEndsAtItsDeadlineAndWhenItIsStopped) {
  std::stop_source over;
  std::atomic<int> asked = 0;
  HttpDouble server(
      [&](const std::string& body) {
        const bool first = ++asked == 1;
        while (!first && !over.stop_requested()) std::this_thread::yield();
        return Echo(body);
      },
      {.keeps = true});
  const auto connections = ConnectTo(server.port);
  EXPECT_TRUE(Ask(*connections).ok());
  const auto begin = Clock::now();
  const auto late = Ask(*connections, "{}", milliseconds(50));
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded) << late.status().message();
  EXPECT_GE(Clock::now() - begin, milliseconds(50));
  EXPECT_EQ(server.requests, 2) << "it is not made again";

  std::stop_source stop;
  std::jthread stopper([&] {
    while (server.requests < 3) std::this_thread::yield();
    stop.request_stop();
  });
  EXPECT_EQ(connections->Post({}, Clock::now() + hours(1), stop.get_token()).status().code(),
            StatusCode::kCancelled);
  over.request_stop();
}

TEST(HttpConnectionsTest, AConnectionGivesItsPlaceToOthersWhenItsTimeIsOver) {
  HttpDouble server(Echo, {.keeps = true});
  const auto none = ConnectTo(server.port, milliseconds(0));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(*none).ok());
  EXPECT_EQ(server.accepted, 3);

  const auto idle = ConnectTo(server.port, milliseconds(20));
  EXPECT_TRUE(Ask(*idle).ok());
  const auto end = Clock::now() + seconds(30);
  while (server.open > 0 && Clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(server.open, 0) << "though nobody called";
}

TEST(HttpConnectionsTest, AServerThatWritesHeadAndBodyApartIsNotWaitedForAtEachCall) {
  // With Nagle's algorithm on, as it is unless one turns it off, the body waits for the acknowledgement of
  // the head, and that was held back for 40 ms.
  HttpDouble server(Echo, {.keeps = true, .in_two = true});
  const auto connections = ConnectTo(server.port);
  std::vector<Clock::duration> took;
  for (int i = 0; i < 60; ++i) {
    const auto begin = Clock::now();
    EXPECT_TRUE(Ask(*connections).ok());
    took.push_back(Clock::now() - begin);
  }
  EXPECT_EQ(server.accepted, 1);
  std::ranges::nth_element(took, took.begin() + 30);
  EXPECT_LT(took[30], milliseconds(30));
}

}  // namespace
}  // namespace tidepool::workers
