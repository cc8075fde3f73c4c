#include "core/model/attention_plan.h"

#include <algorithm>
#include <utility>

namespace tidepool::model {
namespace {

constexpr int64_t kMostPartBytes = int64_t{8} << 20;  // dividing ends where parts would take more
constexpr int64_t kLeastPiece = 20000;                // cycles that are worth another task

// Of one part of a row.
int64_t PartBytes(const AttentionShape& shape) {
  return 4 * shape.heads * AttentionPartFloats(shape.head_size);
}

// Neighbouring rows of one sequence, as many as fit a tile.
struct Segment {
  int32_t begin = 0, end = 0;
  int32_t longest = 0;
  int32_t first_slot = 0;
  int32_t common = 0;  // leading keys in the slots of the segment before it in its tile
};

class Planner {
 public:
  Planner(std::span<const int32_t> first_run, std::span<const int32_t> lengths, std::span<const KvRun> runs,
          const AttentionShape& shape)
      : first_run_(first_run),
        lengths_(lengths),
        runs_(runs),
        shape_(shape),
        group_(shape.heads / shape.kv_heads),
        most_rows_(std::max<int64_t>(1, kAttentionRows / group_)) {}

  AttentionPlan Run() {
    plan_.part_count.assign(lengths_.size(), 0);
    plan_.first_part.assign(lengths_.size(), 0);
    FindSegments();
    if (few_.size() > 1) Sort();
    int64_t total = 0;
    for (const auto* segments : {&full_, &few_}) total += Cost(*segments, 0, INT32_MAX);
    most_cost_ = shape_.threads == 1 ? INT64_MAX / 2 : std::max(kLeastPiece, total / (4 * shape_.threads));
    for (const Segment& s : full_) AddTile({&s, 1});
    for (size_t begin = 0; begin < few_.size();) {
      const size_t end = Gather(begin);
      AddTile(std::span(few_).subspan(begin, end - begin));
      begin = end;
    }
    for (size_t r = 0; r < lengths_.size(); ++r) {
      plan_.first_part[r] = static_cast<int32_t>(plan_.parts);
      plan_.parts += plan_.part_count[r];
    }
    plan_.parts_tiles = Ordered(parts_tiles_);
    plan_.tiles = Ordered(tiles_);
    return std::move(plan_);
  }

 private:
  using Costed = std::pair<int64_t, AttentionTile>;

  void FindSegments() {
    const auto rows = static_cast<int64_t>(lengths_.size());
    for (int64_t begin = 0; begin < rows;) {
      int64_t end = begin + 1;
      while (end < rows && first_run_[static_cast<size_t>(end)] == first_run_[static_cast<size_t>(begin)])
        ++end;
      const int64_t n = end - begin, pieces = (n + most_rows_ - 1) / most_rows_;
      for (int64_t i = 0; i < pieces; ++i) {
        Segment s{.begin = static_cast<int32_t>(begin + n * i / pieces),
                  .end = static_cast<int32_t>(begin + n * (i + 1) / pieces)};
        for (int32_t r = s.begin; r < s.end; ++r)
          s.longest = std::max(s.longest, lengths_[static_cast<size_t>(r)]);
        (2 * n > most_rows_ ? full_ : few_).push_back(s);
      }
      begin = end;
    }
  }

  // Sequences that begin with the same slot side by side.
  void Sort() {
    for (Segment& s : few_) {
      auto run = static_cast<size_t>(first_run_[static_cast<size_t>(s.begin)]);
      while (runs_[run].count == 0) ++run;
      s.first_slot = runs_[run].start;
    }
    std::stable_sort(few_.begin(), few_.end(),
                     [](const Segment& a, const Segment& b) { return a.first_slot < b.first_slot; });
    for (size_t i = 1; i < few_.size(); ++i) {
      if (few_[i].first_slot == few_[i - 1].first_slot) few_[i].common = Common(few_[i - 1], few_[i]);
    }
  }

  // Leading keys that two sequences have in the same slots.
  [[nodiscard]] int32_t Common(const Segment& a, const Segment& b) const {
    const int32_t most = std::min(a.longest, b.longest);
    auto i = static_cast<size_t>(first_run_[static_cast<size_t>(a.begin)]);
    auto j = static_cast<size_t>(first_run_[static_cast<size_t>(b.begin)]);
    int32_t common = 0, in_i = 0, in_j = 0;
    while (common < most) {
      if (in_i == runs_[i].count) {
        ++i, in_i = 0;
      } else if (in_j == runs_[j].count) {
        ++j, in_j = 0;
      } else if (runs_[i].start + in_i != runs_[j].start + in_j) {
        break;
      } else {
        const int32_t n = std::min(runs_[i].count - in_i, runs_[j].count - in_j);
        common += n, in_i += n, in_j += n;
      }
    }
    return std::min(common, most);
  }

  // About the cycles of the keys [from, to) of a tile, as measured on a Zen 5 with AVX-512: of each block
  // that a sequence does not share, of fetching a key and laying it out, and of each row that meets it.
  [[nodiscard]] int64_t Cost(std::span<const Segment> tile, int64_t from, int64_t to) const {
    constexpr int64_t kBlock = 500, kKey = 40, kRow = 3, kMeasuredSize = 48;
    int64_t blocks = 0, keys = 0;
    for (const Segment& s : tile) {
      const int64_t end = std::min<int64_t>(to, s.longest), own = std::max<int64_t>(from, s.common);
      if (end > own) {
        blocks += (end - 1) / kKeyBlock - own / kKeyBlock + 1;
        keys += kKey * (end - own);
      }
      if (end > from) keys += kRow * (s.end - s.begin) * group_ * (end - from);
    }
    return shape_.kv_heads * (blocks * kBlock + keys * shape_.head_size / kMeasuredSize);
  }

  // The end of a tile of segments from `begin` on: those that share keys, and others while that costs little.
  [[nodiscard]] size_t Gather(size_t begin) {
    few_[begin].common = 0;
    int64_t rows = few_[begin].end - few_[begin].begin, cost = Cost({&few_[begin], 1}, 0, INT32_MAX);
    size_t end = begin + 1;
    for (; end < few_.size() && end - begin < kTileSequences; ++end) {
      const Segment& next = few_[end];
      rows += next.end - next.begin;
      cost += Cost({&next, 1}, 0, INT32_MAX);
      if (rows > most_rows_ || (next.common < 16 && cost > most_cost_)) break;
    }
    return end;
  }

  void AddTile(std::span<const Segment> tile) {
    std::vector<int32_t> rows;
    int64_t longest = 0;
    for (const Segment& s : tile) {
      for (int32_t r = s.begin; r < s.end; ++r) rows.push_back(r);
      longest = std::max<int64_t>(longest, s.longest);
    }
    const auto n = static_cast<int64_t>(rows.size());
    const auto first = static_cast<int64_t>(plan_.tile_rows.size());
    plan_.tile_rows.insert(plan_.tile_rows.end(), rows.begin(), rows.end());
    // Divided by KV heads first, which costs nothing, then by blocks.
    const int64_t wanted = Pieces(Cost(tile, 0, longest)), fit = kAttentionRows / (n * group_);
    const int64_t head_pieces =
        fit == 0 ? shape_.kv_heads : std::clamp(wanted, (shape_.kv_heads + fit - 1) / fit, shape_.kv_heads);
    const int64_t blocks = (longest + kKeyBlock - 1) / kKeyBlock,
                  pieces = std::min((wanted + head_pieces - 1) / head_pieces, blocks);
    const auto add = [&](int64_t from, int64_t to, int64_t part, std::vector<Costed>& tiles) {
      const int64_t cost = Cost(tile, from * kKeyBlock, to * kKeyBlock) / head_pieces;
      for (int64_t i = 0; i < head_pieces; ++i) {
        const int64_t end = shape_.kv_heads * (i + 1) / head_pieces * group_;
        for (int64_t h = shape_.kv_heads * i / head_pieces * group_; h < end; h += kAttentionRows) {
          const AttentionTile of_heads{
              .first_row = static_cast<int32_t>(first),
              .rows = static_cast<int32_t>(n),
              .head_begin = static_cast<int32_t>(h),
              .head_end = static_cast<int32_t>(fit == 0 ? std::min(end, h + kAttentionRows) : end),
              .block_begin = static_cast<int32_t>(from),
              .block_end = static_cast<int32_t>(to),
              .part = static_cast<int32_t>(part)};
          tiles.emplace_back(cost, of_heads);
          if (fit > 0) break;
        }
      }
    };
    int64_t from = 0;
    if (const int64_t last = blocks - blocks / pieces; pieces > 1) {
      // The first piece gives one part, the others one for each block.
      const int64_t size = (last + pieces - 2) / (pieces - 1), parts = 1 + last - std::min(size, last);
      if ((planned_parts_ + parts * n) * PartBytes(shape_) <= kMostPartBytes) {
        planned_parts_ += parts * n;
        int64_t part = 0;
        for (int64_t b = 0; b < last; b += size) {
          const int64_t end = std::min(b + size, last);
          add(b, end, part, parts_tiles_);
          part += b == 0 ? 1 : end - b;
        }
        for (const int32_t r : rows) plan_.part_count[static_cast<size_t>(r)] = static_cast<int32_t>(part);
        from = last;
      }
    }
    add(from, blocks, -1, tiles_);
  }

  [[nodiscard]] int64_t Pieces(int64_t cost) const {
    return std::max<int64_t>(1, (cost + most_cost_ / 2) / most_cost_);
  }

  // The longest first.
  std::vector<AttentionTile> Ordered(std::vector<Costed>& tiles) {
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const Costed& a, const Costed& b) { return a.first > b.first; });
    std::vector<AttentionTile> sorted;
    for (const auto& [cost, tile] : tiles) sorted.push_back(tile), plan_.cost += cost;
    return sorted;
  }

  const std::span<const int32_t> first_run_, lengths_;
  const std::span<const KvRun> runs_;
  const AttentionShape shape_;
  const int64_t group_, most_rows_;
  std::vector<Segment> full_, few_;  // whose rows fill a tile alone, and others
  std::vector<Costed> parts_tiles_, tiles_;
  int64_t most_cost_ = 0;  // of a piece
  int64_t planned_parts_ = 0;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan PlanAttention(std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                            std::span<const KvRun> runs, const AttentionShape& shape) {
  return Planner(first_run, lengths, runs, shape).Run();
}

int64_t AttentionPartBytes(const AttentionShape& shape, int64_t rows, int64_t keys) {
  return shape.threads == 1 ? 0 : std::min(kMostPartBytes, rows * (keys / kKeyBlock) * PartBytes(shape));
}

AttentionBackwardPlan PlanAttentionBackward(std::span<const int32_t> first_run,
                                            std::span<const int32_t> lengths, std::span<const KvRun> runs,
                                            std::span<const std::pair<int64_t, int64_t>> ranges,
                                            const AttentionShape& shape) {
  constexpr int64_t kCellRows = 256;  // rows and slots of a cell: some hundred microseconds
  AttentionBackwardPlan plan;
  const int64_t group = shape.heads / shape.kv_heads, heads = std::min(group, kBackwardLanes),
                most_rows = kBackwardLanes / heads;
  for (const auto& [range_begin, range_end] : ranges) {
    std::vector<int32_t> last_of_slots(
        static_cast<size_t>((range_end - range_begin + kCellRows - 1) / kCellRows), -1);
    for (int64_t row = range_begin; row < range_end;) {
      // Tiles of the next kCellRows rows, and the cells of slots that they attend to.
      const auto tile_begin = static_cast<int32_t>(plan.tiles.size());
      std::vector<bool> attended(last_of_slots.size(), false);
      for (const int64_t end = std::min(row + kCellRows, range_end); row < end;) {
        const int32_t sequence = first_run[static_cast<size_t>(row)];
        int64_t n = 0, longest = 0;
        for (; n < most_rows && row + n < end && first_run[static_cast<size_t>(row + n)] == sequence; ++n)
          longest = std::max<int64_t>(longest, lengths[static_cast<size_t>(row + n)]);
        for (int64_t h = 0; h < group; h += heads) {
          const int64_t here = std::min(heads, group - h);
          plan.tiles.push_back({.first_row = static_cast<int32_t>(row),
                                .rows = static_cast<int32_t>(n),
                                .head = static_cast<int32_t>(h),
                                .heads = static_cast<int32_t>(here),
                                .lane = plan.lanes});
          plan.lanes += RoundUp(n * here, 16);
        }
        for (auto run = static_cast<size_t>(sequence); longest > 0; longest -= runs[run++].count) {
          const int64_t count = std::min<int64_t>(longest, runs[run].count),
                        from = runs[run].start - range_begin;
          for (int64_t s = from / kCellRows; count > 0 && s <= (from + count - 1) / kCellRows; ++s)
            attended[static_cast<size_t>(s)] = true;
        }
        row += n;
      }
      int32_t last = -1;
      for (size_t s = 0; s < attended.size(); ++s) {
        if (!attended[s]) continue;
        const auto cell = static_cast<int32_t>(plan.cells.size());
        const int64_t slot = range_begin + static_cast<int64_t>(s) * kCellRows;
        plan.cells.push_back({.tile_begin = tile_begin,
                              .tile_end = static_cast<int32_t>(plan.tiles.size()),
                              .slot_begin = static_cast<int32_t>(slot),
                              .slot_end = static_cast<int32_t>(std::min(slot + kCellRows, range_end)),
                              .first_of_rows = last < 0,
                              .first_of_slots = last_of_slots[s] < 0});
        plan.waits.push_back((last >= 0) + (last_of_slots[s] >= 0));
        plan.next_rows.push_back(-1);
        plan.next_slots.push_back(-1);
        if (last >= 0) plan.next_rows[static_cast<size_t>(last)] = cell;
        if (last_of_slots[s] >= 0) plan.next_slots[static_cast<size_t>(last_of_slots[s])] = cell;
        last = last_of_slots[s] = cell;
      }
    }
  }
  for (size_t i = 0; i < plan.cells.size(); ++i) {
    plan.cells[i].last_of_rows = plan.next_rows[i] < 0;
    plan.cells[i].last_of_slots = plan.next_slots[i] < 0;
  }
  return plan;
}

}  // namespace tidepool::model
