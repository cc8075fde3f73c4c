#pragma once
// A set of data ordinals as a list of intervals: which places of the shuffled data order were issued.
// A set and not a counter, so that a crash between two issues neither skips nor repeats a row.
// Value type; not thread-safe.

#include <cstdint>
#include <map>

namespace tidepool::scheduler {

class OrdinalSet {
 public:
  // False if it was already there.
  bool Insert(int64_t ordinal);
  [[nodiscard]] bool Contains(int64_t ordinal) const;
  // The smallest ordinal >= `from` that is not in the set.
  [[nodiscard]] int64_t FirstMissing(int64_t from = 0) const;
  [[nodiscard]] int64_t size() const { return size_; }
  // [first, one past last), ascending, not touching each other.
  [[nodiscard]] const std::map<int64_t, int64_t>& intervals() const { return intervals_; }

 private:
  std::map<int64_t, int64_t> intervals_;
  int64_t size_ = 0;
};

}  // namespace tidepool::scheduler
