#include "core/cuda/attention_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidepool::cuda {

DecodePlan PlanDecode(std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                      std::span<const model::KvRun> runs) {
  struct Item {
    AttentionItem item;
    std::vector<int32_t> rows;
  };
  DecodePlan plan;
  std::vector<Item> items;
  std::map<std::vector<int32_t>, size_t> shared;  // partition and the slots of a full one, as runs
  for (size_t row = 0; row < first_run.size(); ++row) {
    plan.first_partial.push_back(static_cast<int32_t>(plan.partials));
    const int32_t length = lengths[row];
    int32_t run = first_run[row], position = 0;
    for (int32_t begin = 0; begin < length; begin += kPartitionKeys, ++plan.partials) {
      const int32_t partition = begin / kPartitionKeys;
      while (position + runs[static_cast<size_t>(run)].count <= begin) {
        position += runs[static_cast<size_t>(run++)].count;
      }
      const AttentionItem item{0, 0, partition, run, position};
      const int32_t end = begin + kPartitionKeys;
      if (end > length) {
        items.push_back({item, {static_cast<int32_t>(row)}});
        continue;
      }
      std::vector<int32_t> key = {partition};
      for (int32_t r = run, at = position; at < end; at += runs[static_cast<size_t>(r++)].count) {
        const model::KvRun& k = runs[static_cast<size_t>(r)];
        const int32_t from = std::max(begin, at), to = std::min(end, at + k.count);
        if (from >= to) continue;
        const int32_t slot = k.start + from - at;
        if (key.size() > 1 && key[key.size() - 2] + key.back() == slot) {
          key.back() += to - from;
        } else {
          key.insert(key.end(), {slot, to - from});
        }
      }
      const auto [at, added] = shared.try_emplace(std::move(key), items.size());
      if (added) items.push_back({item, {}});
      items[at->second].rows.push_back(static_cast<int32_t>(row));
    }
  }
  for (Item& i : items) {
    i.item.first = static_cast<int32_t>(plan.order.size());
    i.item.count = static_cast<int32_t>(i.rows.size());
    plan.order.insert(plan.order.end(), i.rows.begin(), i.rows.end());
    plan.items.push_back(i.item);
  }
  return plan;
}

std::vector<AttentionItem> PlanPrefill(std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                                       int64_t rows_max) {
  std::vector<AttentionItem> items;
  for (size_t row = 0; row < first_run.size(); ++row) {
    if (items.empty() || items.back().run != first_run[row] || items.back().count == rows_max) {
      items.push_back({static_cast<int32_t>(row), 0, 0, first_run[row], 0});
    }
    ++items.back().count;
  }
  const auto longest = [&](const AttentionItem& i) {
    return *std::max_element(lengths.begin() + i.first, lengths.begin() + i.first + i.count);
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const AttentionItem& a, const AttentionItem& b) { return longest(a) > longest(b); });
  return items;
}

}  // namespace tidepool::cuda
