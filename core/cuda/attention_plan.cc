#include "core/cuda/attention_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
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

namespace {

using Bits = std::array<uint64_t, kBackStep>;  // of 64 rows to 64 others

Bits Transposed(Bits x) {  // Hacker's Delight, 7-3
  uint64_t mask = 0xFFFFFFFFU;
  for (unsigned j = 32; j != 0; j >>= 1, mask ^= mask << j) {
    for (unsigned k = 0; k < 64; k = (k + j + 1) & ~j) {
      const uint64_t t = ((x[k] >> j) ^ x[k + j]) & mask;
      x[k] ^= t << j;
      x[k + j] ^= t;
    }
  }
  return x;
}

// Which 64 queries of a range attend to which 64 keys.
class RangeBits {
 public:
  static constexpr int32_t kNone = -2, kAll = -1;
  RangeBits(int64_t begin, int64_t end, std::span<const int32_t> first_run, std::span<const int32_t> lengths,
            Runs runs)
      : tiles_((end - begin + kBackStep - 1) / kBackStep),
        cell_(static_cast<size_t>(tiles_ * tiles_), kNone) {
    std::vector<int64_t> whole(
        static_cast<size_t>(tiles_ + 1));  // rows that attend to the whole tile, as steps up and down
    for (int64_t q = 0; q < tiles_; ++q) {
      const int64_t rows = std::min<int64_t>(kBackStep, end - begin - q * kBackStep);
      std::ranges::fill(whole, 0);
      const auto each_run = [&](auto f) {
        for (int64_t r = 0; r < rows; ++r) {
          const auto row = static_cast<size_t>(begin + q * kBackStep + r);
          int64_t left = lengths[row];
          for (auto run = static_cast<size_t>(first_run[row]); left > 0; ++run) {
            const int64_t low = runs[run].start - begin,
                          high = low + std::min<int64_t>(left, runs[run].count);
            left -= high - low;
            if (low < high) f(r, low, high);
          }
        }
      };
      each_run([&](int64_t, int64_t low, int64_t high) {
        const int64_t first = (low + kBackStep - 1) / kBackStep, last = high / kBackStep;
        if (first < last) ++whole[static_cast<size_t>(first)], --whole[static_cast<size_t>(last)];
      });
      int64_t sum = 0;
      for (int64_t k = 0; k < tiles_; ++k) {
        sum += whole[static_cast<size_t>(k)];
        if (sum == kBackStep) Cell(q, k) = kAll;
      }
      each_run([&](int64_t r, int64_t low, int64_t high) {
        for (int64_t k = low / kBackStep; k * kBackStep < high; ++k) {
          int32_t& cell = Cell(q, k);
          if (cell == kAll) continue;
          if (cell == kNone) {
            cell = static_cast<int32_t>(bits_.size());
            bits_.emplace_back();
          }
          const int64_t from = std::max<int64_t>(low - k * kBackStep, 0),
                        to = std::min<int64_t>(high - k * kBackStep, 64);
          bits_[static_cast<size_t>(cell)][static_cast<size_t>(r)] |= ~uint64_t{0} >> (64 - (to - from))
                                                                                          << from;
        }
      });
    }
  }
  // From the side of the queries, or from that of the keys; beyond the last tile none attend.
  [[nodiscard]] int32_t Of(int64_t block, int64_t step, bool of_keys) const {
    if (block >= tiles_) return kNone;
    return of_keys ? cell_[static_cast<size_t>(step * tiles_ + block)]
                   : cell_[static_cast<size_t>(block * tiles_ + step)];
  }
  [[nodiscard]] Bits Words(int32_t cell, bool of_keys) const {
    Bits same{};
    if (cell == kAll) same.fill(~uint64_t{0});
    if (cell < 0) return same;
    return of_keys ? Transposed(bits_[static_cast<size_t>(cell)]) : bits_[static_cast<size_t>(cell)];
  }
  [[nodiscard]] int64_t tiles() const { return tiles_; }

 private:
  int32_t& Cell(int64_t q, int64_t k) { return cell_[static_cast<size_t>(q * tiles_ + k)]; }
  const int64_t tiles_;
  std::vector<int32_t> cell_;  // [queries, keys]: place in bits_, kAll or kNone
  std::vector<Bits> bits_;
};

// The number of the mask of these words: sequences have the same ones on their diagonals.
int32_t MaskOf(const Bits& low, const Bits& high, std::vector<uint64_t>* masks) {
  constexpr int64_t kLook = 16;  // at this many of the last masks
  const auto count = static_cast<int64_t>(masks->size()) / kBackBlock;
  for (int64_t i = count - 1; i >= std::max<int64_t>(0, count - kLook); --i) {
    const auto at = masks->begin() + i * kBackBlock;
    if (std::equal(low.begin(), low.end(), at) && std::equal(high.begin(), high.end(), at + kBackStep)) {
      return static_cast<int32_t>(i);
    }
  }
  masks->insert(masks->end(), low.begin(), low.end());
  masks->insert(masks->end(), high.begin(), high.end());
  return static_cast<int32_t>(count);
}

}  // namespace

BackwardPlan PlanBackward(std::span<const std::pair<int64_t, int64_t>> ranges,
                          std::span<const int32_t> first_run, std::span<const int32_t> lengths, Runs runs) {
  BackwardPlan plan;
  for (const auto& [begin, end] : ranges) {
    const RangeBits bits(begin, end, first_run, lengths, runs);
    const auto first_tile = static_cast<int32_t>(plan.tiles.size());
    for (int64_t t = 0; t < bits.tiles(); ++t) {
      const int64_t first = begin + t * kBackStep;
      plan.tiles.push_back({static_cast<int32_t>(first),
                            static_cast<int32_t>(std::min<int64_t>(kBackStep, end - first)),
                            static_cast<int32_t>(first_tile + t), -1});
    }
    for (const bool of_keys : {false, true}) {
      BackwardPass& pass = of_keys ? plan.keys : plan.queries;
      for (int64_t t = 0; t < bits.tiles(); t += 2) {
        const int64_t first = begin + t * kBackStep;
        BackwardBlock block{static_cast<int32_t>(first),
                            static_cast<int32_t>(std::min<int64_t>(kBackBlock, end - first)),
                            static_cast<int32_t>(pass.steps.size()), 0, static_cast<int32_t>(first_tile + t)};
        for (int64_t s = 0; s < bits.tiles(); ++s) {
          const int32_t low = bits.Of(t, s, of_keys), high = bits.Of(t + 1, s, of_keys);
          if (low == RangeBits::kNone && high == RangeBits::kNone) continue;
          BackwardStep step = plan.tiles[static_cast<size_t>(first_tile + s)];
          if (low != RangeBits::kAll || high != RangeBits::kAll) {
            step.mask = MaskOf(bits.Words(low, of_keys), bits.Words(high, of_keys), &plan.masks);
          }
          pass.steps.push_back(step);
          ++block.steps;
        }
        pass.blocks.push_back(block);
      }
    }
  }
  for (BackwardPass* pass : {&plan.queries, &plan.keys}) {
    std::ranges::stable_sort(pass->blocks, std::greater<>(), &BackwardBlock::steps);
  }
  return plan;
}

}  // namespace tidepool::cuda
