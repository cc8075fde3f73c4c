#pragma once
// An HTTP server for tests: answers each request with the bytes that a function makes of its body.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace tidepool::workers {

inline std::string HttpText(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

struct HttpDoubleOptions {
  bool reads_bodies = true;    // false: it answers after the head, as a server does that refuses a long body
  bool keeps = false;          // connections stay open for another request, each with a thread of its own
  int requests_max = 1 << 30;  // a kept connection is closed after so many
  bool in_two = false;         // head and body are written apart
  uint16_t port = 0;           // 0: a free one
};

class HttpDouble {
 public:
  using Answer = std::function<std::string(const std::string& body)>;  // empty: closes the connection
  explicit HttpDouble(Answer answer, HttpDoubleOptions options = {})
      : answer_(std::move(answer)), options_(options) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int again = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &again, sizeof(again));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(options.port);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    TP_CHECK(::bind(listener_, at, size) == 0 && ::listen(listener_, 16) == 0) << "a port of the loopback";
    TP_CHECK(::getsockname(listener_, at, &size) == 0) << "its number";
    port = ntohs(address.sin_port);
    url = "http://127.0.0.1:" + std::to_string(port) + "/grade?model=x";
    thread_ = std::jthread([this](const std::stop_token& stop) { Listen(stop); });
  }
  ~HttpDouble() {
    thread_ = {};
    ::close(listener_);
  }
  // Closes all connections. requires keeps, and no request under way
  void CloseIdle() {
    ++closing_;
    while (open > 0) std::this_thread::yield();
  }

  uint16_t port = 0;
  std::string url;
  std::string head;               // of the last request; not with keeps
  std::atomic<int> accepted = 0;  // connections
  std::atomic<int> open = 0;      // of these
  std::atomic<int> requests = 0;

 private:
  // Something to read came. False: stopped, or closed by CloseIdle().
  bool Waits(int fd, const std::stop_token& stop, int round) const {
    while (!stop.stop_requested() && closing_ == round) {
      pollfd waits{fd, POLLIN, 0};
      if (::poll(&waits, 1, 5) > 0) return true;
    }
    return false;
  }

  void Listen(const std::stop_token& stop) {
    std::vector<std::jthread> threads;
    while (!stop.stop_requested()) {
      if (!Waits(listener_, stop, closing_)) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) continue;
      ++accepted;
      ++open;
      if (options_.keeps) {
        threads.emplace_back([this, connection](const std::stop_token& end) { Serve(connection, end); });
      } else {
        Serve(connection, stop);
      }
    }
  }

  void Serve(int connection, const std::stop_token& stop) {
    const int round = closing_;
    for (int left = options_.keeps ? options_.requests_max : 1; left > 0; --left) {
      if ((options_.keeps && !Waits(connection, stop, round)) || !One(connection)) break;
    }
    ::close(connection);
    --open;
  }

  // One request. False: the connection is over.
  bool One(int connection) {
    std::string got;
    size_t body = std::string::npos, bytes = 0;
    char part[4096];
    while (body == std::string::npos || got.size() < body + bytes) {
      const auto n = ::read(connection, part, sizeof(part));
      if (n <= 0 && options_.keeps) return false;
      if (n <= 0) break;
      got.append(part, static_cast<size_t>(n));
      const size_t end = got.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      body = end + 4;
      const size_t length = got.find("Content-Length: ");
      if (!options_.reads_bodies) break;
      bytes = length < end ? std::stoul(got.substr(length + 16)) : 0;
    }
    ++requests;
    if (!options_.keeps) head = got.substr(0, std::min(body, got.size()));
    const std::string answer = answer_(body == std::string::npos ? "" : got.substr(body));
    const size_t end = options_.in_two ? answer.find("\r\n\r\n") + 4 : 0;
    return Write(connection, answer.substr(0, end)) && Write(connection, answer.substr(end)) &&
           !answer.empty();
  }

  static bool Write(int connection, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const auto n = ::send(connection, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }

  const Answer answer_;
  const HttpDoubleOptions options_;
  std::atomic<int> closing_ = 0;
  int listener_ = -1;
  std::jthread thread_;
};

}  // namespace tidepool::workers
