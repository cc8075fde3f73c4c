#include "scheduler/ordinal_set.h"

#include <iterator>

namespace tidepool::scheduler {

bool OrdinalSet::Insert(int64_t ordinal) {
  auto next = intervals_.upper_bound(ordinal);
  if (next != intervals_.begin()) {
    auto prev = std::prev(next);
    if (ordinal < prev->second) return false;
    if (ordinal == prev->second) {  // grows prev, perhaps up to next
      ++size_;
      prev->second = ordinal + 1;
      if (next != intervals_.end() && next->first == ordinal + 1) {
        prev->second = next->second;
        intervals_.erase(next);
      }
      return true;
    }
  }
  ++size_;
  int64_t end = ordinal + 1;
  if (next != intervals_.end() && next->first == end) {
    end = next->second;
    intervals_.erase(next);
  }
  intervals_[ordinal] = end;
  return true;
}

bool OrdinalSet::Contains(int64_t ordinal) const {
  const auto next = intervals_.upper_bound(ordinal);
  return next != intervals_.begin() && ordinal < std::prev(next)->second;
}

int64_t OrdinalSet::FirstMissing(int64_t from) const {
  const auto next = intervals_.upper_bound(from);
  if (next == intervals_.begin()) return from;
  const auto prev = std::prev(next);
  return from < prev->second ? prev->second : from;
}

}  // namespace tidepool::scheduler
