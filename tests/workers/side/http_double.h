#pragma once
// An HTTP server for tests: answers each request with the bytes that a function makes of its body.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/check.h"

namespace tidepool::workers {

inline std::string HttpText(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

class HttpDouble {
 public:
  using Answer = std::function<std::string(const std::string& body)>;  // empty: closes the connection
  // Without reads_bodies it answers after the head, as a server does that refuses a long body.
  explicit HttpDouble(Answer answer, bool reads_bodies = true)
      : answer_(std::move(answer)), reads_bodies_(reads_bodies) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    TP_CHECK(::bind(listener_, at, size) == 0 && ::listen(listener_, 16) == 0) << "a port of the loopback";
    TP_CHECK(::getsockname(listener_, at, &size) == 0) << "its number";
    url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/grade?model=x";
    thread_ = std::jthread([this](const std::stop_token& stop) { Serve(stop); });
  }
  ~HttpDouble() {
    thread_ = {};
    ::close(listener_);
  }

  std::string url;
  std::string head;  // of the last request

 private:
  void Serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd waits{listener_, POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      std::string got;
      size_t body = std::string::npos, bytes = 0;
      char part[4096];
      while (body == std::string::npos || got.size() < body + bytes) {
        const auto n = ::read(connection, part, sizeof(part));
        if (n <= 0) break;
        got.append(part, static_cast<size_t>(n));
        const size_t end = got.find("\r\n\r\n");
        if (end == std::string::npos) continue;
        body = end + 4;
        const size_t length = got.find("Content-Length: ");
        if (!reads_bodies_) break;
        bytes = length < end ? std::stoul(got.substr(length + 16)) : 0;
      }
      head = got.substr(0, std::min(body, got.size()));
      const std::string answer = answer_(body == std::string::npos ? "" : got.substr(body));
      for (size_t at = 0; at < answer.size();) {
        const auto n = ::send(connection, answer.data() + at, answer.size() - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<size_t>(n);
      }
      ::close(connection);
    }
  }

  const Answer answer_;
  const bool reads_bodies_;
  int listener_ = -1;
  std::jthread thread_;
};

}  // namespace tidepool::workers
