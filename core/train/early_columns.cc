#include "core/train/early_columns.h"

#include <algorithm>

namespace tidepool::train {

const EarlyColumns::Floats* EarlyColumns::Find(const Row& row, Column column) const {
  const auto it = row.digest == 0 ? kept_.end() : kept_.find(KeyOf(row));
  if (it == kept_.end()) return nullptr;
  const Floats& values = it->second[static_cast<size_t>(column)];
  const bool whole = !values.empty() && static_cast<int64_t>(values.size()) == row.response_tokens();
  return whole ? &values : nullptr;
}

void EarlyColumns::Put(const Row& row, Column column, Floats values) {
  if (row.digest == 0 || most_rows_ == 0) return;
  const auto [it, added] = kept_.try_emplace(KeyOf(row));
  it->second[static_cast<size_t>(column)] = std::move(values);
  if (!added) return;
  order_.push_back(it->first);
  if (rows() <= most_rows_) return;
  kept_.erase(order_.front());
  order_.pop_front();
}

void EarlyColumns::Forget(std::span<const Row> rows) {
  for (const Row& row : rows) kept_.erase(KeyOf(row));
  std::erase_if(order_, [&](const Key& key) { return !kept_.contains(key); });
}

void EarlyColumns::ForgetMoving() {
  for (auto& [key, kept] : kept_) {
    for (const Column c : {Column::kValues, Column::kOld, Column::kSquares})
      kept[static_cast<size_t>(c)] = {};
  }
}

void EarlyColumns::Clear() {
  kept_.clear();
  order_.clear();
}

}  // namespace tidepool::train
