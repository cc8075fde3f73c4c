#pragma once
// Whether the process of a pool answers: one that is frozen, or hangs in the system, still has its sessions'
// connections.

#include <chrono>
#include <optional>
#include <string>

#include "workers/net/line_socket.h"

namespace tidepool::workers {

class PoolPulse {
 public:
  explicit PoolPulse(std::string socket) : path_(std::move(socket)) {}
  // Asks where no question is open, without waiting: how long ago the pool answered last, at first since this
  // was made.
  std::chrono::steady_clock::duration SilentFor();

 private:
  std::string path_;
  std::optional<LineSocket> asked_;
  std::chrono::steady_clock::time_point answered_ = std::chrono::steady_clock::now();
};

}  // namespace tidepool::workers
