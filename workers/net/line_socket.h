#pragma once
// JSON objects, a line each, over a Unix socket of this machine. One thread.

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

// To a pool's socket: it sends the object back, whatever else it is doing.
inline constexpr const char* kPoolPulse = "pulse";

class LineSocket {
 public:
  explicit LineSocket(int fd = -1) : fd_(fd) {}
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;

  // kInvalidArgument: the path is longer than a socket's name may be; kUnavailable: nobody listens there,
  // others fill its queue, or it cannot be made. Neither blocks, and accept4 of one that listens does not.
  static StatusOr<LineSocket> Listen(const std::string& path);
  static StatusOr<LineSocket> Connect(const std::string& path);

  [[nodiscard]] int fd() const { return fd_; }
  // False: whoever is at the other end is gone, or does not read.
  [[nodiscard]] bool Send(const nlohmann::json& json) const;
  // What has come by now: an object once its line is whole; an error once the other end is gone, or has said
  // something else.
  StatusOr<std::optional<nlohmann::json>> Take();
  [[nodiscard]] bool WaitForInput(std::chrono::milliseconds patience) const;

 private:
  int fd_;
  std::string line_;
};

}  // namespace tidepool::workers
