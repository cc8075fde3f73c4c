#include "core/cuda/attention_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/hash.h"

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

const DecodePlan& DecodePlanner::Plan(std::span<const int32_t> rows, std::span<const int32_t> first_run,
                                      std::span<const int32_t> lengths, Runs runs) {
  plan_.items.clear();
  plan_.first_partial.assign(first_run.size(), 0);
  plan_.partials = 0;
  parts_.clear();
  size_t full = 0;
  for (const int32_t row : rows)
    full += static_cast<size_t>(lengths[static_cast<size_t>(row)] / kPartitionKeys);
  full_.assign(std::bit_ceil(2 * full + 1), {});  // half of it stays free
  for (const int32_t number : rows) {
    const auto row = static_cast<size_t>(number);
    plan_.first_partial[row] = static_cast<int32_t>(plan_.partials);
    Place place{first_run[row], 0};
    for (int32_t begin = 0; begin < lengths[row]; begin += kPartitionKeys, ++plan_.partials) {
      Advance(runs, begin, &place);
      const int32_t partition = begin / kPartitionKeys, end = begin + kPartitionKeys;
      auto item = static_cast<int32_t>(plan_.items.size());
      if (end <= lengths[row]) {
        const int64_t key = (int64_t{partition} << 32) | SlotAt(runs, place, begin);
        size_t at = Mix64(static_cast<uint64_t>(key)) % full_.size();
        while (full_[at].key >= 0 && full_[at].key != key) at = (at + 1) % full_.size();
        if (full_[at].key < 0) {
          full_[at] = {key, item};
        } else {
          const AttentionItem& other = plan_.items[static_cast<size_t>(full_[at].item)];
          if (SameSlots(runs, {other.run, other.run_position}, place, begin, end)) item = full_[at].item;
        }
      }
      if (item == static_cast<int32_t>(plan_.items.size()))
        plan_.items.push_back({0, 0, partition, place.run, place.position, number, lengths[row] - begin});
      ++plan_.items[static_cast<size_t>(item)].count;
      parts_.emplace_back(item, number);
    }
  }
  // The rows of each item together, in their order.
  int32_t first = 0;
  for (AttentionItem& item : plan_.items) {
    item.first = first;
    first += std::exchange(item.count, 0);
  }
  plan_.order.resize(parts_.size());
  for (const auto& [item, row] : parts_) {
    AttentionItem& of = plan_.items[static_cast<size_t>(item)];
    plan_.order[static_cast<size_t>(of.first + of.count++)] = row;
  }
  return plan_;
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
