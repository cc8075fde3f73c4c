#include "core/cuda/attention_plan.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tidepool::cuda {
namespace {

using Runs = std::span<const device::KvRun>;

struct Place {  // the run that holds a position, and the position of its first key
  int32_t run = 0, position = 0;
};
void Advance(Runs runs, int32_t to, Place* place) {
  while (place->position + runs[static_cast<size_t>(place->run)].count <= to) {
    place->position += runs[static_cast<size_t>(place->run++)].count;
  }
}
int32_t SlotAt(Runs runs, Place place, int32_t at) {
  return runs[static_cast<size_t>(place.run)].start + at - place.position;
}
// Whether keys [begin, end) from a and from b on lie in the same slots, however these are cut into runs.
bool SameSlots(Runs runs, Place a, Place b, int32_t begin, int32_t end) {
  for (int32_t at = begin; at < end;) {
    Advance(runs, at, &a);
    Advance(runs, at, &b);
    if (SlotAt(runs, a, at) != SlotAt(runs, b, at)) return false;
    at = std::min(a.position + runs[static_cast<size_t>(a.run)].count,
                  b.position + runs[static_cast<size_t>(b.run)].count);
  }
  return true;
}

}  // namespace

DecodePlan PlanDecode(std::span<const int32_t> rows, std::span<const int32_t> first_run,
                      std::span<const int32_t> lengths, Runs runs) {
  struct Item {
    AttentionItem item;
    std::vector<int32_t> rows;
  };
  DecodePlan plan;
  plan.first_partial.resize(first_run.size());
  std::vector<Item> items;
  std::unordered_map<int64_t, size_t> full;  // partition and its first slot: the item that has them
  for (const int32_t number : rows) {
    const auto row = static_cast<size_t>(number);
    plan.first_partial[row] = static_cast<int32_t>(plan.partials);
    Place place{first_run[row], 0};
    for (int32_t begin = 0; begin < lengths[row]; begin += kPartitionKeys, ++plan.partials) {
      Advance(runs, begin, &place);
      const int32_t partition = begin / kPartitionKeys, end = begin + kPartitionKeys;
      if (end <= lengths[row]) {
        const auto [at, added] =
            full.try_emplace((int64_t{partition} << 32) | SlotAt(runs, place, begin), items.size());
        if (!added) {
          Item& other = items[at->second];
          if (SameSlots(runs, {other.item.run, other.item.run_position}, place, begin, end)) {
            other.rows.push_back(number);
            continue;
          }
        }
      }
      items.push_back({{0, 0, partition, place.run, place.position}, {number}});
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

std::vector<AttentionItem> PlanPrefill(std::span<const int32_t> rows, std::span<const int32_t> first_run,
                                       std::span<const int32_t> lengths, int64_t rows_max) {
  std::vector<AttentionItem> items;
  for (const int32_t row : rows) {
    const int32_t run = first_run[static_cast<size_t>(row)];
    if (items.empty() || items.back().run != run || items.back().count == rows_max ||
        items.back().first + items.back().count != row) {
      items.push_back({row, 0, 0, run, 0});
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

RowsByPass DivideRows(std::span<const int32_t> first_run, bool all_decoded) {
  RowsByPass rows;
  for (size_t begin = 0, end = 0; begin < first_run.size(); begin = end) {
    while (end < first_run.size() && first_run[end] == first_run[begin]) ++end;
    const bool many = !all_decoded && static_cast<int64_t>(end - begin) >= kPrefillFrom;
    std::vector<int32_t>& to = many ? rows.prefill : rows.decode;
    for (size_t row = begin; row < end; ++row) to.push_back(static_cast<int32_t>(row));
  }
  return rows;
}

}  // namespace tidepool::cuda
