// The server as a stranger on the machine meets it: over a socket.
#include "workers/net/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/thread_annotations.h"
#include "workers/net/certificates.h"
#include "workers/net/http_get.h"

namespace tidepool::workers {
namespace {

class Wire {
 public:
  explicit Wire(uint16_t port) : Wire(port, ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  Wire(uint16_t port, int fd) : fd_(fd) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  ~Wire() { ::close(fd_); }
  void Send(const std::string& text) const { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // As many bytes as there are in `text`.
  void Take(std::string* text) const {
    timeval patience{20, 0};
    (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(::recv(fd_, text->data(), text->size(), MSG_WAITALL), static_cast<ssize_t>(text->size()));
  }
  // Up to `end`, or to that of the connection.
  [[nodiscard]] std::string ReadTo(const std::string& end) const {
    std::string text;
    char part[65536];
    pollfd ready{fd_, POLLIN, 0};
    while (!text.ends_with(end) && ::poll(&ready, 1, 20000) == 1) {
      const ssize_t got = ::recv(fd_, part, sizeof(part), 0);
      if (got <= 0) break;
      text.append(part, static_cast<size_t>(got));
    }
    return text;
  }
  // Up to the end of the connection, or of an answer with a length.
  std::string Read() {
    std::string text;
    char part[4096];
    for (;;) {
      pollfd ready{fd_, POLLIN, 0};
      if (::poll(&ready, 1, 20000) != 1) return text + "(nothing came)";
      const ssize_t got = ::recv(fd_, part, sizeof(part), 0);
      if (got <= 0) {
        closed_ = true;
        return text;
      }
      text.append(part, static_cast<size_t>(got));
      const size_t head = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
      if (head == std::string::npos || length == std::string::npos) continue;
      if (text.size() >= head + 4 + std::stoul(text.substr(length + 16))) return text;
    }
  }
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  int fd_;
  bool closed_ = false;
};

struct Served {
  explicit Served(HttpServerOptions options = {}) {
    options.key_digest = Sha256Hex("secret");
    auto started = HttpServer::Start(options, [](const HttpRequest& r) -> HttpResponse {
      if (r.path == "/throw") throw std::runtime_error("broken");
      std::string said = r.method + " " + r.path;
      for (const auto& [name, value] : r.query) said += " " + name + "=" + value;
      return {.body = said + " " + r.body};
    });
    EXPECT_TRUE(started.ok()) << started.status().message();
    server = *std::move(started);
  }
  // The answer to one request with these lines in its head.
  [[nodiscard]] std::string Ask(const std::string& target, const std::string& lines,
                                const std::string& method = "GET",
                                const std::string& host = "127.0.0.1") const {
    Wire wire(server->port());
    wire.Send(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + lines +
              "\r\n");
    return wire.Read();
  }
  std::unique_ptr<HttpServer> server;
};

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
const char* const kBearer = "Authorization: Bearer secret\r\n";

TEST(HttpServerTest, OnlyWhoShowsTheTokenInTheHeaderIsAnswered) {
  const Served s;
  EXPECT_TRUE(Has(s.Ask("/x%20y?q=a%2Bb+c", kBearer), "GET /x y q=a+b c"));
  EXPECT_TRUE(Has(s.Ask("/x", "authorization: bearer secret\r\n"), "GET /x"));
  const std::string port = std::to_string(s.server->port());
  for (const std::string& wrong :
       {std::string(), std::string("Authorization: Bearer secre\r\n"),
        std::string("Authorization: Bearer secretx\r\n"), std::string("Authorization: Basic secret\r\n"),
        std::string("Authorization: secret\r\n"),
        // Cookies of 127.0.0.1 go to every port of it, so whoever has one may be another program.
        "Cookie: tidepool-" + port + "=secret\r\n",
        "Cookie: tidepool-" + port + "=secret\r\nSec-Fetch-Site: same-origin\r\n"}) {
    const std::string answer = s.Ask("/x", wrong);
    EXPECT_TRUE(Has(answer, " 401 ")) << wrong;
    EXPECT_FALSE(Has(answer, "GET /x")) << wrong;
  }
  // An address is sent and logged.
  for (const char* target : {"/x?token=secret", "/?token=secret", "/?run=a&token=secret"})
    EXPECT_TRUE(Has(s.Ask(target, ""), " 401 ")) << target;
}

TEST(HttpServerTest, TheTokenIsBehindTheAddressAndNoAnswerSetsACookie) {
  const Served s({.open_paths = {"/"}});
  const std::string start = "http://127.0.0.1:" + std::to_string(s.server->port());
  EXPECT_EQ(s.server->Url(), start);
  for (const char* target : {"/", "/?run=a", "/?token=secret", "/x", "/throw"}) {
    for (const char* lines : {"", kBearer, "Cookie: a=b\r\n"}) {
      const std::string answer = s.Ask(target, lines);
      EXPECT_FALSE(Has(answer, "Set-Cookie")) << answer;
      EXPECT_FALSE(Has(answer.substr(0, answer.find("\r\n\r\n")), "secret")) << answer;
    }
  }
}

TEST(HttpServerTest, AnOpenPathIsAnsweredToStrangersAndNothingBesideIt) {
  const Served s({.open_paths = {"/"}, .connections_max = 2});
  EXPECT_TRUE(Has(s.Ask("/?run=a", ""), "GET / run=a"));
  EXPECT_TRUE(Has(s.Ask("/", "", "GET", "evil.example"), " 403 "));
  for (const char* target : {"/x", "//", "/%2F", "/./", "/x/../"})
    EXPECT_TRUE(Has(s.Ask(target, ""), " 401 ")) << target;
  // Who asked for it is a stranger still, whose connection goes first.
  Wire stranger(s.server->port()), own(s.server->port());
  stranger.Send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(Has(stranger.Read(), "GET /"));
  own.Send("GET /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "\r\n");
  EXPECT_TRUE(Has(own.Read(), "GET /x"));
  EXPECT_TRUE(Has(s.Ask("/y", kBearer), "GET /y"));
  EXPECT_EQ(stranger.Read(), "");
}

TEST(HttpServerTest, NamesOfOtherHostsAreRefusedSoThatNoSiteCanRebindToUs) {
  const Served s;
  for (const char* host : {"localhost", "127.0.0.1:8800", "localhost:1"})
    EXPECT_TRUE(Has(s.Ask("/x", kBearer, "GET", host), "GET /x")) << host;
  for (const char* host :
       {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "127.0.0.1:x", "10.0.0.1"})
    EXPECT_TRUE(Has(s.Ask("/x", kBearer, "GET", host), " 403 ")) << host;
}

TEST(HttpServerTest, EveryAnswerForbidsFramesOutsideContentAndCaches) {
  const Served s;
  for (const char* lines : {"", kBearer}) {
    const std::string answer = s.Ask("/x", lines);
    for (const char* line :
         {"Cache-Control: no-store", "X-Content-Type-Options: nosniff", "X-Frame-Options: DENY",
          "Referrer-Policy: no-referrer", "Content-Security-Policy: default-src 'none'",
          "Cross-Origin-Resource-Policy: same-origin"})
      EXPECT_TRUE(Has(answer, line)) << line;
    EXPECT_FALSE(Has(answer, "Access-Control"));
  }
}

TEST(HttpServerTest, OnlyReadsWhereNoBodyIsAllowedAndBoundedOnesWhereItIs) {
  const Served reads, writes({.body_bytes_max = 10});
  EXPECT_TRUE(Has(reads.Ask("/x", kBearer, "POST"), " 405 "));
  EXPECT_TRUE(Has(reads.Ask("/x", std::string(kBearer) + "Content-Length: 3\r\n", "GET"), " 413 "));
  const std::string head = reads.Ask("/x", kBearer, "HEAD");
  EXPECT_TRUE(Has(head, "Content-Length: 7\r\n")) << head;
  EXPECT_FALSE(Has(head, "GET /x"));
  Wire wire(writes.server->port());
  wire.Send("POST /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) +
            "Content-Length: 5\r\n\r\nhello");
  EXPECT_TRUE(Has(wire.Read(), "POST /x hello"));
  wire.Send("POST /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "Content-Length: 11\r\n\r\n");
  EXPECT_TRUE(Has(wire.Read(), " 413 "));
}

TEST(HttpServerTest, NonsenseLongHeadsAndThrowingHandlersAreAnsweredAndDoNoHarm) {
  const Served s;
  EXPECT_TRUE(Has(s.Ask("/" + std::string(20000, 'a'), kBearer), " 431 "));
  Wire nonsense(s.server->port());
  nonsense.Send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_TRUE(Has(nonsense.Read(), " 400 "));
  EXPECT_TRUE(Has(s.Ask("/throw", kBearer), " 500 "));
  EXPECT_TRUE(Has(s.Ask("/x", kBearer), "GET /x"));
}

// A server whose answers are given by the test.
struct Later {
  explicit Later(HttpServerOptions options = {}) {
    options.key_digest = Sha256Hex("secret");
    options.body_bytes_max = 100;
    auto started =
        HttpServer::StartLater(options, [this](const HttpRequest& r, std::shared_ptr<HttpReply> reply) {
          const MutexLock lock(mu);
          asked.push_back({r.body, std::move(reply)});
          changed.NotifyAll();
        });
    EXPECT_TRUE(started.ok()) << started.status().message();
    server = *std::move(started);
  }
  std::shared_ptr<HttpReply> Next() {
    const MutexLock lock(mu);
    EXPECT_TRUE(
        changed.WaitFor(mu, std::chrono::seconds(60), [&]() TP_REQUIRES(mu) { return !asked.empty(); }));
    if (asked.empty()) return nullptr;
    std::shared_ptr<HttpReply> reply = std::move(asked.front().second);
    asked.erase(asked.begin());
    return reply;
  }
  static std::string Post(const std::string& body) {
    return "POST /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  Mutex mu;
  Condition changed;
  std::vector<std::pair<std::string, std::shared_ptr<HttpReply>>> asked TP_GUARDED_BY(mu);
  std::unique_ptr<HttpServer> server;
};

TEST(HttpServerTest, AnAnswerMayComeLaterAndInPieces) {
  Later later;
  Wire wire(later.server->port());
  wire.Send(Later::Post("one"));
  const auto first = later.Next();
  EXPECT_FALSE(later.server->AwaitAnswers(std::chrono::milliseconds(1)));
  first->Answer({.body = "whole"});
  first->Answer({.body = "again"});
  EXPECT_TRUE(Has(wire.Read(), "whole"));
  EXPECT_TRUE(later.server->AwaitAnswers(std::chrono::seconds(60)));
  // Two requests at once are answered one after the other.
  wire.Send(Later::Post("two") + Later::Post("three"));
  const auto second = later.Next();
  second->Begin({.type = "text/event-stream"});
  second->Write("abc");
  second->Write(std::string(20, 'd'));
  second->End();
  const auto third = later.Next();
  third->Answer({.body = "last"});
  const std::string text = wire.Read();
  EXPECT_TRUE(Has(text, "Transfer-Encoding: chunked")) << text;
  EXPECT_TRUE(Has(text, "\r\n0\r\n\r\n")) << text;
  EXPECT_TRUE(Has(text, "last")) << text;
  // One that nobody answers is not left waiting.
  wire.Send(Later::Post("four"));
  later.Next().reset();
  EXPECT_TRUE(Has(wire.Read(), " 500 "));
}

TEST(HttpServerTest, WhoeverAnswersHearsThatTheCallerHasHungUp) {
  Later later;
  Mutex mu;
  Condition changed;
  int gone = 0;
  const auto hear = [&] {
    const MutexLock lock(mu);
    ++gone;
    changed.NotifyAll();
  };
  const auto heard = [&](int count) {
    const MutexLock lock(mu);
    return changed.WaitFor(mu, std::chrono::seconds(60), [&] { return gone == count; });
  };
  std::shared_ptr<HttpReply> reply;
  {
    Wire wire(later.server->port());
    wire.Send(Later::Post("one"));
    reply = later.Next();
    reply->OnGone(hear);
  }
  EXPECT_TRUE(heard(1));
  reply->OnGone(hear);  // at once
  EXPECT_TRUE(heard(2));
  EXPECT_TRUE(later.server->AwaitAnswers(std::chrono::seconds(60)));
  reply->Answer({.body = "nobody reads it"});
  // One that does not take what it is sent is cut.
  Wire slow(later.server->port());
  slow.Send(Later::Post("two"));
  reply = later.Next();
  reply->OnGone(hear);
  reply->Begin({});
  for (int i = 0; i < 64; ++i) reply->Write(std::string(HttpServer::kUnsentBytes / 4, 'x'));
  EXPECT_TRUE(heard(3));
}

TEST(HttpServerTest, NoBodyIsReadBeforeTheKeyWasShown) {
  Later later;
  Wire wire(later.server->port());
  wire.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nthe rest does not come");
  EXPECT_TRUE(Has(wire.Read(), " 401 "));
  Later other({.threads = 1, .bodies_bytes_max = 120, .refusal = [](int status, const std::string& why) {
                 return HttpResponse{.status = status, .body = "refused: " + why};
               }});
  Wire first(other.server->port()), second(other.server->port());
  first.Send(Later::Post(std::string(100, 'a')).substr(0, 150));
  for (int i = 0; i < 3; ++i) {  // by the one thread, after what came before
    Wire stranger(other.server->port());
    stranger.Send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(Has(stranger.Read(), " 401 "));
  }
  second.Send("POST /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) +
              "Content-Length: 90\r\n\r\n");
  const std::string said = second.Read();
  EXPECT_TRUE(Has(said, " 503 ")) << said;
  EXPECT_TRUE(Has(said, "refused: other requests")) << said;
}

TEST(HttpServerTest, AnOpenPathTakesNoBodyOfAStranger) {
  const Served s({.open_paths = {"/open"}, .body_bytes_max = 8 << 20, .bodies_bytes_max = 8 << 20});
  for (const char* method : {"POST", "GET", "PUT"}) {
    Wire wire(s.server->port());
    wire.Send(std::string(method) + " /open HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n");
    EXPECT_TRUE(Has(wire.Read(), " 401 ")) << method;
  }
  EXPECT_TRUE(Has(s.Ask("/open", ""), "GET /open"));
  EXPECT_TRUE(Has(s.Ask("/open", std::string(kBearer) + "Content-Length: 0\r\n", "POST"), "POST /open"));
}

TEST(HttpServerTest, WhereARequestEndsIsPlain) {
  const Served s({.body_bytes_max = 100});
  for (const char* coding : {"gzip", "xchunked", "identity, chunked", "chunked, gzip"}) {
    Wire wire(s.server->port());  // what follows may be a body, or another request: it is not read
    wire.Send("POST /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "Transfer-Encoding: " +
              coding + "\r\n\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n" + kBearer + "\r\n");
    const std::string said = wire.Read();
    EXPECT_TRUE(Has(said, " 501 ") || Has(said, " 400 ")) << coding << ": " << said;
    EXPECT_TRUE(Has(said, "Connection: close")) << said;
    EXPECT_EQ(wire.Read(), "") << coding;
  }
  EXPECT_TRUE(
      Has(s.Ask("/x", std::string(kBearer) + "Transfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n", "POST"),
          "POST /x ab"));
  EXPECT_TRUE(Has(s.Ask("/x", std::string("Host: evil\r\n") + kBearer), " 400 "));
  // Before a body, who asks for it hears that it may come, or that it may not.
  Wire asks(s.server->port());
  const std::string head =
      "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-Continue\r\n";
  asks.Send(head + kBearer + "Content-Length: 2\r\n\r\n");
  std::string said(25, ' ');
  asks.Take(&said);
  EXPECT_EQ(said, "HTTP/1.1 100 Continue\r\n\r\n");
  asks.Send("ab");
  EXPECT_TRUE(Has(asks.Read(), "POST /x ab"));
  Wire stranger(s.server->port());
  stranger.Send(head + "Content-Length: 2\r\n\r\n");
  EXPECT_TRUE(stranger.Read().starts_with("HTTP/1.1 401 "));
}

TEST(HttpServerTest, EveryAddressOfLoopbackMayBeAsked) {
  const Served s({.host = "127.0.0.2"});
  const auto asked = HttpGet({.address = "127.0.0.2:" + std::to_string(s.server->port()),
                              .target = "/x",
                              .credentials = {"secret", std::nullopt}});
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_EQ(asked->status, 200);
}

TEST(HttpServerTest, APieceMayBeLongerThanWhatMayWait) {
  Later later;
  Wire wire(later.server->port());
  wire.Send(Later::Post("one"));
  const auto reply = later.Next();
  reply->Begin({});
  reply->Write(std::string(3 * HttpServer::kUnsentBytes, 'x'));
  reply->Write("the end");
  reply->End();
  const std::string text = wire.ReadTo("\r\n0\r\n\r\n");
  EXPECT_GT(text.size(), static_cast<size_t>(3 * HttpServer::kUnsentBytes));
  EXPECT_TRUE(Has(text, "the end"));
}

TEST(HttpServerTest, WhoAnswersMayBeLaterThanItsServer) {
  for (int round = 0; round < 100; ++round) {
    auto later = std::make_unique<Later>();
    std::vector<std::unique_ptr<Wire>> wires;
    std::vector<std::shared_ptr<HttpReply>> replies;
    for (int i = 0; i < 4; ++i) {
      wires.push_back(std::make_unique<Wire>(later->server->port()));
      wires.back()->Send(Later::Post("one"));
      replies.push_back(later->Next());
      replies.back()->Begin({});
    }
    std::atomic<bool> writes = false;
    std::jthread answers([&](const std::stop_token& stop) {
      for (int left = 200; left > 0; left -= stop.stop_requested() ? 1 : 0) {
        for (const auto& reply : replies) reply->Write("a");
        writes = true;
      }
      replies.clear();
    });
    while (!writes) std::this_thread::yield();
    later.reset();
  }
}

TEST(HttpServerTest, ConnectionsThatSayNothingOrTrickleAreCut) {
  const Served s({.idle_timeout_s = 0.05});
  Wire silent(s.server->port());
  EXPECT_EQ(silent.Read(), "");
  EXPECT_TRUE(silent.closed());
  Wire half(s.server->port());
  half.Send("GET /x HTTP/1.1\r\nHost: local");
  EXPECT_EQ(half.Read(), "");
  Wire kept(s.server->port());
  kept.Send("GET /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "\r\n");
  EXPECT_TRUE(Has(kept.Read(), "GET /x"));
  EXPECT_EQ(kept.Read(), "") << "an idle one that has shown the key, too";
}

TEST(HttpServerTest, AFloodOfStrangersKeepsNobodyOut) {
  const Served s({.connections_max = 4});
  Wire own(s.server->port());
  const std::string ask = "GET /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "\r\n";
  own.Send(ask);
  EXPECT_TRUE(Has(own.Read(), "GET /x"));
  std::vector<std::unique_ptr<Wire>> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(std::make_unique<Wire>(s.server->port()));
  own.Send(ask);
  EXPECT_TRUE(Has(own.Read(), "GET /x")) << "one that has shown the key stays";
  EXPECT_TRUE(Has(s.Ask("/y", kBearer), "GET /y")) << "and a new one comes in";
  EXPECT_EQ(flood.front()->Read(), "") << "the oldest stranger went";
}

TEST(HttpServerTest, StrangersThatTakeAllDescriptorsKeepNobodyOut) {
  const Served s;
  std::vector<int> sockets;  // made before the limit; the last one is ours
  for (int i = 0; i < 30; ++i) sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit was{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &was), 0);
  rlimit low = was;
  low.rlim_cur = static_cast<rlim_t>(sockets.back()) + 4;  // for three connections
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  {
    std::vector<std::unique_ptr<Wire>> wires;
    for (const int fd : sockets) wires.push_back(std::make_unique<Wire>(s.server->port(), fd));
    wires.back()->Send("GET /x HTTP/1.1\r\nHost: localhost\r\n" + std::string(kBearer) + "\r\n");
    EXPECT_TRUE(Has(wires.back()->Read(), "GET /x"));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &was), 0);
}

TEST(HttpServerTest, APortThatIsTakenIsNamed) {
  const Served s;
  const auto second = HttpServer::Start({.port = s.server->port(), .key_digest = Sha256Hex("x")},
                                        [](const HttpRequest&) { return HttpResponse{}; });
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(Has(second.status().message(), "another program listens there"));
}

TEST(HttpServerTest, AnAddressThatOthersReachNeedsCertificates) {
  const auto open = HttpServer::Start({.host = "0.0.0.0", .key_digest = Sha256Hex("x")},
                                      [](const HttpRequest&) { return HttpResponse{}; });
  EXPECT_EQ(open.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(open.status().message(), "no certificates"));
}

TEST(HttpServerTest, WithAnIdentityTheCertificateOfItsCallersAndTheKeyAreNeeded) {
  const std::string dir = testing::TempDir() + "/http_certificates", other = dir + "_of_another_job";
  for (const std::string& each : {dir, other}) {
    std::filesystem::remove_all(each);
    std::filesystem::create_directories(each);
    ASSERT_TRUE(OpenOrCreateCertificates(each, "run").ok());
  }
  const auto of = [](const std::string& from, const std::string& role) {
    return *ReadIdentity(from + "/" + role + ".token");
  };
  const Served s(
      {.host = "0.0.0.0", .open_paths = {}, .identity = of(dir, "controller"), .callers = "operator"});
  const auto ask = [&](const std::string& key, const std::optional<Identity>& identity) {
    return HttpGet({.address = "127.0.0.1:" + std::to_string(s.server->port()),
                    .target = "/x",
                    .credentials = {key, identity}});
  };
  // What is no encrypted call is cut at once and does not keep a thread busy.
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(s.Ask("/x", kBearer).find("HTTP/"), std::string::npos);
  EXPECT_FALSE(ask("secret", std::nullopt).ok()) << "not encrypted";
  EXPECT_FALSE(ask("secret", of(dir, "device")).ok()) << "another role";
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(25));
  const auto right = ask("secret", of(dir, "operator"));
  ASSERT_TRUE(right.ok()) << right.status().message();
  EXPECT_EQ(right->body, "GET /x ");
  const auto no_key = ask("secre", of(dir, "operator"));
  ASSERT_TRUE(no_key.ok()) << no_key.status().message();
  EXPECT_EQ(no_key->status, 401);
  EXPECT_FALSE(ask("secret", of(other, "operator")).ok()) << "another job, which does not believe us";
  // An operator is no process of the run: nobody shows it a token.
  const Served false_one({.identity = of(dir, "operator"), .callers = "operator"});
  EXPECT_FALSE(HttpGet({.address = "127.0.0.1:" + std::to_string(false_one.server->port()),
                        .target = "/x",
                        .credentials = {"secret", of(dir, "operator")}})
                   .ok());
  EXPECT_EQ(HttpGet({.address = "192.0.2.1:80", .target = "/x", .credentials = {"secret"}}).status().code(),
            StatusCode::kFailedPrecondition);
  for (const std::string& each : {dir, other}) std::filesystem::remove_all(each);
}

TEST(HttpServerTest, CertificatesThatAreExchangedAreThoseOfNewConnections) {
  const std::string dir = testing::TempDir() + "/http_renewal";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const CertificateTimes times{.lifetime = 100};  // it looks every second
  ASSERT_TRUE(OpenOrCreateCertificates(dir, "run", times).ok());
  const auto of = [&](const std::string& role) { return *ReadIdentity(dir + "/" + role + ".token"); };
  const Served s({.identity = of("controller"), .callers = "operator"});
  const auto asks = [&](const Identity& identity) {
    return HttpGet({.address = "127.0.0.1:" + std::to_string(s.server->port()),
                    .target = "/x",
                    .credentials = {"secret", identity}})
        .ok();
  };
  const auto soon = [](const std::function<bool()>& condition) {
    for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         std::chrono::steady_clock::now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  };
  const Identity first = *of("operator");
  EXPECT_TRUE(asks(first));
  CertificateRenewal renewal(dir, "run", times);
  const auto late = std::chrono::system_clock::now() + std::chrono::seconds(95);
  ASSERT_TRUE(renewal.Advance(late).ok());
  ASSERT_TRUE(renewal.Advance(late + std::chrono::seconds(5)).ok());
  Identity renewed = *of("operator"), copied = first;
  EXPECT_NE(renewed.certificate, first.certificate);
  renewed.folder.clear();
  copied.folder.clear();  // with the old authority alone
  EXPECT_TRUE(soon([&] { return asks(renewed); })) << "it does not believe the new authority";
  EXPECT_TRUE(soon([&] { return !asks(copied); })) << "it shows the old certificate";
  EXPECT_TRUE(asks(first)) << "who dials reads the files";
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace tidepool::workers
