#include "scheduler/waits.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tidepool::scheduler {

void Waits::BeginAnew(const WorkerRef& who, TimePoint now) {
  for (auto& [key, wait] : waits_) {
    if (wait.who != who) continue;
    wait.deadline = wait.deadline + (now - wait.since);
    wait.since = now;
  }
}

const Waits::Wait* Waits::Find(const Key& key) const {
  const auto it = waits_.find(key);
  return it == waits_.end() ? nullptr : &it->second;
}

std::vector<Waits::Key> Waits::Expired(TimePoint now) const {
  std::vector<Key> keys;
  for (const auto& [key, w] : waits_) {
    if (now > w.deadline) keys.push_back(key);
  }
  return keys;
}

TimePoint Waits::Horizon(TimePoint now) const {
  TimePoint horizon = now;
  for (const auto& [key, w] : waits_) horizon = std::max(horizon, w.deadline);
  return horizon;
}

std::string Waits::Describe(TimePoint now, const NameOf& name_of, int64_t n) const {
  std::vector<std::pair<TimePoint, Key>> order;
  for (const auto& [key, w] : waits_) order.emplace_back(w.since, key);
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [since, key] : order) {
    if (n-- == 0) break;
    const Wait& w = waits_.at(key);
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", Seconds(now - since));
    if (!text.empty()) text += "; ";
    text += std::string("op=") + Name(key.kind) +
            " waiting_for=" + (w.who.worker.valid() ? name_of(w.who) : std::string("storage")) +
            " for_s=" + seconds + (w.what.empty() ? "" : " what=" + w.what);
  }
  return text;
}

bool Watchdog::Stalled(const Waits& waits, TimePoint now) const {
  return now - last_ > limit_ && waits.Horizon(now) <= now;
}

}  // namespace tidepool::scheduler
