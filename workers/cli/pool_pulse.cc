#include "workers/cli/pool_pulse.h"

#include <utility>

namespace tidepool::workers {
namespace {

constexpr auto kAskEvery = std::chrono::seconds(5);

}  // namespace

std::chrono::steady_clock::duration PoolPulse::SilentFor() {
  const auto now = std::chrono::steady_clock::now();
  if (asked_) {
    const auto answer = asked_->Take();
    if (answer.ok() && !*answer) return now - answered_;
    if (answer.ok()) answered_ = now;
    asked_.reset();
  } else if (now - answered_ >= kAskEvery) {
    // Nobody is there yet, or more ask than it lets in.
    if (auto pool = LineSocket::Connect(path_); pool.ok() && pool->Send({{kPoolPulse, true}}))
      asked_ = *std::move(pool);
  }
  return now - answered_;
}

}  // namespace tidepool::workers
