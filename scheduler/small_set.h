#pragma once
// A set of a handful of ids, in order, in one block of memory: where the nodes of a std::set are a cache miss
// each. Adding and erasing move what lies behind, so it is for sets that stay small (members of a group,
// workers that had chunks of it). Reads as a std::set. Not thread-safe.

#include <algorithm>
#include <utility>
#include <vector>

namespace tidepool::scheduler {

template <typename T>
class SmallSet {
 public:
  using const_iterator = typename std::vector<T>::const_iterator;

  [[nodiscard]] const_iterator begin() const { return items_.begin(); }
  [[nodiscard]] const_iterator end() const { return items_.end(); }
  [[nodiscard]] auto rbegin() const { return items_.rbegin(); }
  [[nodiscard]] auto rend() const { return items_.rend(); }
  [[nodiscard]] size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] bool contains(const T& x) const {
    return std::binary_search(items_.begin(), items_.end(), x);
  }
  // Where it is, and whether it is new.
  std::pair<const_iterator, bool> insert(const T& x) {
    const auto at = std::lower_bound(items_.begin(), items_.end(), x);
    if (at != items_.end() && *at == x) return {at, false};
    return {items_.insert(at, x), true};
  }
  size_t erase(const T& x) {
    const auto at = std::lower_bound(items_.begin(), items_.end(), x);
    if (at == items_.end() || *at != x) return 0;
    items_.erase(at);
    return 1;
  }
  void clear() { items_.clear(); }

 private:
  std::vector<T> items_;
};

}  // namespace tidepool::scheduler
