#include "workers/side/http_connections.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tidepool::workers {

HttpConnections::HttpConnections(HttpAddress address, HostLookup lookup, std::chrono::nanoseconds life)
    : address_(std::move(address)),
      life_(life),
      lookup_(std::move(lookup)),
      closer_([this](const std::stop_token& stop) { CloseOld(stop); }) {}

StatusOr<HttpAnswer> HttpConnections::Post(const HttpCall& call, Clock::time_point deadline,
                                           const std::stop_token& stop) try {
  Kept kept = Take();
  if (kept.connection != nullptr) {
    StatusOr<HttpAnswer> answer = PostOver(kept, call, deadline, stop);
    // kUnavailable is "closed"; a server that is silent until the deadline is not asked again.
    if (answer.status().code() != StatusCode::kUnavailable || !kept.connection->silent()) return answer;
  }
  TP_ASSIGN_OR_RETURN(kept.connection, HttpConnection::Open(address_, lookup_, deadline, stop));
  kept.end = Clock::now() + life_;
  return PostOver(kept, call, deadline, stop);
} catch (const std::exception& problem) {  // Asio: no descriptor is left
  return ResourceExhausted(std::string("HTTP: ") + problem.what());
}

StatusOr<HttpAnswer> HttpConnections::PostOver(Kept& kept, const HttpCall& call, Clock::time_point deadline,
                                               const std::stop_token& stop) {
  StatusOr<HttpAnswer> answer = kept.connection->Post(call, deadline, stop);
  if (kept.connection->reusable() && Clock::now() < kept.end) Keep(std::move(kept));
  return answer;
}

HttpConnections::Kept HttpConnections::Take() {
  std::vector<Kept> closed;  // not under the lock
  const MutexLock lock(mu_);
  while (!idle_.empty()) {
    Kept kept = std::move(idle_.back());
    idle_.pop_back();
    if (Clock::now() < kept.end && kept.connection->IsQuiet()) return kept;
    closed.push_back(std::move(kept));
  }
  return {};
}

void HttpConnections::Keep(Kept kept) {
  const MutexLock lock(mu_);
  idle_.push_back(std::move(kept));
}

void HttpConnections::CloseOld(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<Kept> old;  // closed when the lock is given back
    const MutexLock lock(mu_);
    const Clock::time_point now = Clock::now();
    Clock::time_point next = now + std::max<std::chrono::nanoseconds>(life_, std::chrono::milliseconds(1));
    for (Kept& kept : idle_) {
      if (kept.end <= now) {
        old.push_back(std::move(kept));
      } else {
        next = std::min(next, kept.end);
      }
    }
    std::erase_if(idle_, [](const Kept& kept) { return kept.connection == nullptr; });
    if (old.empty()) wake_.WaitFor(mu_, stop, next - now);
  }
}

}  // namespace tidepool::workers
