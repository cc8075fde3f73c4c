#pragma once
// Ids that are 0, 1, 2 ... in the order of a key that changes: one place in a heap for each, moved when its
// key changes. A queue with an entry for every change would mostly hold entries that are out of date, and the
// nodes of a tree are a cache miss each. Ties go by id. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tidepool::scheduler {

template <typename Key>
class OrderedIds {
 public:
  using Item = std::pair<Key, int64_t>;  // key, id

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] size_t size() const { return heap_.size(); }
  // requires not empty.
  [[nodiscard]] const Item& first() const { return heap_.front(); }
  // In place of the key it had, if any.  requires id >= 0; memory grows with the largest.
  void Set(int64_t id, const Key& key) {
    if (static_cast<size_t>(id) >= place_.size()) place_.resize(static_cast<size_t>(id) + 1, kNowhere);
    size_t at = place_[static_cast<size_t>(id)];
    if (at == kNowhere) {
      at = heap_.size();
      heap_.push_back({key, id});
    }
    Settle(at, {key, id});
  }
  void Remove(int64_t id) {
    if (static_cast<size_t>(id) >= place_.size() || place_[static_cast<size_t>(id)] == kNowhere) return;
    const size_t at = std::exchange(place_[static_cast<size_t>(id)], kNowhere);
    const Item last = heap_.back();
    heap_.pop_back();
    if (at < heap_.size()) Settle(at, last);
  }
  void Clear() {
    heap_.clear();
    place_.clear();
  }
  // The item with the smallest key for which `is` returns true, or nullptr. Only keys below `end` count, if
  // `end` is given. `is` may be called for other items as well.
  template <typename Is>
  [[nodiscard]] const Item* FirstThat(const Is& is, const std::optional<Key>& end = {}) const {
    const Item* best = nullptr;
    Search(0, is, end, best);
    return best;
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  // Below a place is nothing that comes before it.
  template <typename Is>
  void Search(size_t at, const Is& is, const std::optional<Key>& end, const Item*& best) const {
    if (at >= heap_.size() || (best != nullptr && *best < heap_[at]) || (end && heap_[at].first >= *end))
      return;
    if (is(heap_[at])) {
      best = &heap_[at];
      return;
    }
    const size_t left = 2 * at + 1, right = left + 1;
    const bool right_first = right < heap_.size() && heap_[right] < heap_[left];
    Search(right_first ? right : left, is, end, best);
    Search(right_first ? left : right, is, end, best);
  }
  void Put(size_t at, const Item& item) {
    heap_[at] = item;
    place_[static_cast<size_t>(item.second)] = at;
  }
  // The place `at` is free: `item` goes there, or as far up or down as it has to.
  void Settle(size_t at, const Item& item) {
    while (at > 0 && item < heap_[(at - 1) / 2]) {
      Put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    for (size_t below = 2 * at + 1; below < heap_.size(); below = 2 * at + 1) {
      if (below + 1 < heap_.size() && heap_[below + 1] < heap_[below]) ++below;
      if (!(heap_[below] < item)) break;
      Put(at, heap_[below]);
      at = below;
    }
    Put(at, item);
  }
  std::vector<Item> heap_;
  std::vector<size_t> place_;  // by id
};

}  // namespace tidepool::scheduler
