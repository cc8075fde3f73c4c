#pragma once
// Columns of rows that were computed before their step (Trainer::Preview): what a frozen model says of a row
// is the same whenever it is asked, and what the trained weights or the critic say of it is the same until
// they are updated. Kept by what the row is, its sample and the digest of its payload; bounded. Not
// thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/train/batch.h"

namespace tidepool::train {

enum class Column : uint8_t {
  kReference,  // log-probs
  kTeacher,    // log-probs
  kValues,     // of the critic
  kOld,        // log-probs of the trained weights
  kSquares,    // sum_v p_v^2 of the trained weights
};
inline constexpr size_t kColumns = 5;

class EarlyColumns {
 public:
  using Floats = std::vector<float>;  // [response token]

  explicit EarlyColumns(int64_t most_rows) : most_rows_(most_rows) {}

  // Null: not here, or not as long as the row. Rows of no payload have none.
  [[nodiscard]] const Floats* Find(const Row& row, Column column) const;
  void Put(const Row& row, Column column, Floats values);  // where it is full, the oldest row goes

  void Forget(std::span<const Row> rows);  // they were trained
  void ForgetMoving();                     // columns of weights that were updated
  void Clear();
  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(kept_.size()); }

 private:
  using Key = std::pair<SampleId, uint64_t>;
  using Kept = std::array<Floats, kColumns>;
  static Key KeyOf(const Row& row) { return {row.tid, row.digest}; }

  const int64_t most_rows_;
  std::map<Key, Kept> kept_;
  std::deque<Key> order_;  // of kept_, the oldest first
};

}  // namespace tidepool::train
