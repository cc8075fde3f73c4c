#pragma once
// When each engine is due next: one place in a heap for each, moved when its time changes. A queue with an entry for every
// change would mostly hold entries that are out of date. Ties go by sequence number. Not thread-safe.

#include <cstdint>
#include <utility>
#include <vector>

namespace tidepool::scheduler {

class DueTimes {
 public:
  struct Due {
    double t = 0;
    int64_t seq = 0, id = 0;
    friend bool operator<(const Due& x, const Due& y) { return x.t != y.t ? x.t < y.t : x.seq < y.seq; }
  };

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] const Due& first() const { return heap_.front(); }
  // In place of the time it had, if any.  requires id >= 0; memory grows with the largest.
  void Set(const Due& due) {
    if (static_cast<size_t>(due.id) >= place_.size()) place_.resize(static_cast<size_t>(due.id) + 1, kNowhere);
    size_t at = place_[static_cast<size_t>(due.id)];
    if (at == kNowhere) {
      at = heap_.size();
      heap_.push_back(due);
    }
    Settle(at, due);
  }
  void Remove(int64_t id) {
    if (static_cast<size_t>(id) >= place_.size() || place_[static_cast<size_t>(id)] == kNowhere) return;
    const size_t at = std::exchange(place_[static_cast<size_t>(id)], kNowhere);
    const Due last = heap_.back();
    heap_.pop_back();
    if (at < heap_.size()) Settle(at, last);
  }
  void Clear() {
    heap_.clear();
    place_.clear();
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  void Put(size_t at, const Due& due) {
    heap_[at] = due;
    place_[static_cast<size_t>(due.id)] = at;
  }
  // The place `at` is free: `due` goes there, or as far up or down as it has to.
  void Settle(size_t at, const Due& due) {
    while (at > 0 && due < heap_[(at - 1) / 2]) {
      Put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    for (size_t below = 2 * at + 1; below < heap_.size(); below = 2 * at + 1) {
      if (below + 1 < heap_.size() && heap_[below + 1] < heap_[below]) ++below;
      if (!(heap_[below] < due)) break;
      Put(at, heap_[below]);
      at = below;
    }
    Put(at, due);
  }
  std::vector<Due> heap_;
  std::vector<size_t> place_;    // by id
};

}  // namespace tidepool::scheduler
