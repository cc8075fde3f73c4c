#include "core/comm/rendezvous_table.h"

#include <charconv>
#include <utility>

namespace tidepool::comm {

Status RendezvousTable::Put(const std::string& key, std::string value) {
  TP_RETURN_IF_ERROR(over_);
  const auto known = values_.find(key);
  const size_t before = known == values_.end() ? 0 : key.size() + known->second.size();
  const size_t bytes = bytes_ - before + key.size() + value.size();
  if (key.empty() || key.size() > kMostKeyBytes || value.size() > kMostValueBytes || bytes > kMostBytes ||
      (known == values_.end() && values_.size() >= kMostKeys))
    return ResourceExhausted("rendezvous: no room for a key of " + std::to_string(key.size()) +
                             " bytes and a value of " + std::to_string(value.size()) + " beside " +
                             std::to_string(values_.size()) + " others of " + std::to_string(bytes_) +
                             " bytes in all");
  bytes_ = bytes;
  values_[key] = std::move(value);
  changed_.NotifyAll();
  return OkStatus();
}

Status RendezvousTable::Set(const std::string& key, const std::string& value) {
  const MutexLock lock(mu_);
  return Put(key, value);
}

StatusOr<std::vector<std::string>> RendezvousTable::Get(const std::vector<std::string>& keys,
                                                        std::chrono::milliseconds patience) {
  if (keys.size() > kMostAsked)
    return ResourceExhausted("rendezvous: " + std::to_string(keys.size()) +
                             " values are asked for at a time");
  const MutexLock lock(mu_);
  std::vector<std::string> found;
  std::string missing;
  size_t bytes = 0;
  const auto all = [&]() TP_REQUIRES(mu_) {
    found.clear();
    bytes = 0;
    for (const std::string& key : keys) {
      const auto it = values_.find(key);
      if (it == values_.end()) {
        missing = key;
        return !over_.ok();
      }
      bytes += it->second.size();
      if (bytes > kMostAnswered) return true;
      found.push_back(it->second);
    }
    return true;
  };
  const bool there = all() || changed_.WaitFor(mu_, patience, all);
  TP_RETURN_IF_ERROR(over_);
  if (!there)
    return DeadlineExceeded("rendezvous: '" + missing + "' is not there after " +
                            std::to_string(patience.count()) + " ms");
  if (bytes > kMostAnswered) return ResourceExhausted("rendezvous: the values are too large for one answer");
  return found;
}

StatusOr<int64_t> RendezvousTable::Add(const std::string& key, int64_t n) {
  const MutexLock lock(mu_);
  int64_t sum = 0;
  if (const auto it = values_.find(key); it != values_.end()) {
    const char* end = it->second.data() + it->second.size();
    if (const auto [read, error] = std::from_chars(it->second.data(), end, sum);
        error != std::errc() || read != end)
      return InvalidArgument("rendezvous: '" + key + "' is no number");
  }
  if (__builtin_add_overflow(sum, n, &sum)) return InvalidArgument("rendezvous: '" + key + "' overflows");
  TP_RETURN_IF_ERROR(Put(key, std::to_string(sum)));
  return sum;
}

void RendezvousTable::Close(const std::string& why) {
  const MutexLock lock(mu_);
  if (!over_.ok()) return;
  over_ = NotFound("the training group is over: " + why);
  values_.clear();
  bytes_ = 0;
  changed_.NotifyAll();
}

}  // namespace tidepool::comm
