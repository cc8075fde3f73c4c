#include "core/model/attention_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tidepool::model {
namespace {

constexpr int64_t kMostPartBytes = int64_t{8} << 20;  // sharing and dividing end where parts would take more
constexpr int64_t kLeastPiece = 20000;                // cycles that are worth another task

// Neighbouring rows of one sequence.
struct Segment {
  int32_t begin = 0, end = 0;
  int32_t shortest = 0, longest = 0;
  int32_t blocks_done = 0;         // by parts
  std::vector<int32_t> last_slot;  // of each block that all its rows see whole
};

class Planner {
 public:
  Planner(std::span<const int32_t> first_run, std::span<const int32_t> lengths, std::span<const KvRun> runs,
          const AttentionShape& shape)
      : first_run_(first_run),
        lengths_(lengths),
        runs_(runs),
        shape_(shape),
        group_(shape.heads / shape.kv_heads) {}

  AttentionPlan Run() {
    plan_.part_count.assign(lengths_.size(), 0);
    plan_.first_part.assign(lengths_.size(), 0);
    FindSegments();
    std::vector<size_t> few;  // segments whose rows do not fill a tile
    for (size_t i = 0; i < segments_.size(); ++i) {
      Segment& s = segments_[i];
      if ((s.end - s.begin) * group_ * 2 > kAttentionRows || s.shortest < kKeyBlock) continue;
      FindLastSlots(s);
      few.push_back(i);
    }
    std::stable_sort(few.begin(), few.end(),
                     [&](size_t a, size_t b) { return segments_[a].last_slot < segments_[b].last_slot; });
    Share(few, 0);
    Finish();
    for (size_t r = 0; r < lengths_.size(); ++r) {
      plan_.first_part[r] = static_cast<int32_t>(plan_.parts);
      plan_.parts += plan_.part_count[r];
    }
    Order(plan_.parts_tiles);
    Order(plan_.tiles);
    return std::move(plan_);
  }

 private:
  void FindSegments() {
    const auto rows = static_cast<int32_t>(lengths_.size());
    for (int32_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      if (r == 0 || first_run_[i] != first_run_[i - 1])
        segments_.push_back({.begin = r, .shortest = lengths_[i], .longest = lengths_[i]});
      Segment& s = segments_.back();
      s.end = r + 1;
      s.shortest = std::min(s.shortest, lengths_[i]);
      s.longest = std::max(s.longest, lengths_[i]);
    }
  }

  void FindLastSlots(Segment& s) const {
    auto run = static_cast<size_t>(first_run_[static_cast<size_t>(s.begin)]);
    int64_t before = 0;  // keys of the runs before `run`
    for (int64_t last = kKeyBlock - 1; last < s.shortest; last += kKeyBlock) {
      for (; before + runs_[run].count <= last; ++run) before += runs_[run].count;
      s.last_slot.push_back(static_cast<int32_t>(runs_[run].start + last - before));
    }
  }

  // Leading keys that two sequences have in the same slots, up to `most`.
  [[nodiscard]] int64_t Common(const Segment& a, const Segment& b, int64_t most) const {
    auto i = static_cast<size_t>(first_run_[static_cast<size_t>(a.begin)]);
    auto j = static_cast<size_t>(first_run_[static_cast<size_t>(b.begin)]);
    if (i == j) return most;
    int64_t common = 0, in_i = 0, in_j = 0;
    while (common < most) {
      if (in_i == runs_[i].count) {
        ++i, in_i = 0;
      } else if (in_j == runs_[j].count) {
        ++j, in_j = 0;
      } else if (runs_[i].start + in_i != runs_[j].start + in_j) {
        break;
      } else {
        const int64_t n = std::min(runs_[i].count - in_i, runs_[j].count - in_j);
        common += n, in_i += n, in_j += n;
      }
    }
    return std::min(common, most);
  }
  [[nodiscard]] int64_t CommonBlocks(const Segment& a, const Segment& b) const {
    const auto most = static_cast<int64_t>(std::min(a.last_slot.size(), b.last_slot.size()));
    int64_t same = 0;
    while (same < most && a.last_slot[static_cast<size_t>(same)] == b.last_slot[static_cast<size_t>(same)])
      ++same;
    return Common(a, b, same * kKeyBlock) / kKeyBlock;
  }

  // Tiles of parts for segments, sorted by their slots, that share blocks from `from` on; the blocks before
  // are shared by all of them.
  void Share(std::span<const size_t> few, int64_t from) {
    for (size_t i = 0; i < few.size();) {
      int64_t common = 0;
      size_t end = i + 1;
      for (; end < few.size(); ++end) {
        const int64_t next = CommonBlocks(segments_[few[end - 1]], segments_[few[end]]);
        if (next <= from) break;
        common = end == i + 1 ? next : std::min(common, next);
      }
      if (end - i > 1) {
        std::vector<int32_t> rows;
        for (size_t k = i; k < end; ++k) {
          const Segment& s = segments_[few[k]];
          for (int32_t r = s.begin; r < s.end; ++r) rows.push_back(r);
        }
        if (AddParts(rows, from, common)) {
          for (size_t k = i; k < end; ++k) segments_[few[k]].blocks_done = static_cast<int32_t>(common);
          Share(few.subspan(i, end - i), common);
        }
      }
      i = end;
    }
  }

  // Parts of `rows` for the blocks [from, to). False: they would take too much memory.
  bool AddParts(const std::vector<int32_t>& rows, int64_t from, int64_t to) {
    const int64_t pieces =
        Pieces(TileCost(static_cast<int64_t>(rows.size()), (to - from) * kKeyBlock), to - from);
    const int64_t size = (to - from + pieces - 1) / pieces;
    int64_t parts = 0;
    for (int64_t b = from; b < to; b += size) parts += b == 0 ? 1 : std::min(size, to - b);
    const int64_t bytes = AttentionPartFloats(shape_.head_size) * shape_.heads * 4;
    if ((planned_parts_ + parts * static_cast<int64_t>(rows.size())) * bytes > kMostPartBytes) return false;
    planned_parts_ += parts * static_cast<int64_t>(rows.size());
    int32_t part = plan_.part_count[static_cast<size_t>(rows[0])];
    for (int64_t b = from; b < to; b += size) {
      const int64_t end = std::min(b + size, to);
      AddTiles(rows, b, end, part, plan_.parts_tiles);
      part += static_cast<int32_t>(b == 0 ? 1 : end - b);
    }
    for (const int32_t r : rows) plan_.part_count[static_cast<size_t>(r)] = part;
    return true;
  }

  void Finish() {
    for (const Segment& s : segments_) {
      const int64_t n = s.end - s.begin, most = std::max<int64_t>(1, kAttentionRows / group_),
                    tiles = (n + most - 1) / most;
      for (int64_t t = 0; t < tiles; ++t) {
        std::vector<int32_t> rows(static_cast<size_t>(n * (t + 1) / tiles - n * t / tiles));
        std::iota(rows.begin(), rows.end(), static_cast<int32_t>(s.begin + n * t / tiles));
        int32_t longest = 0;
        for (const int32_t r : rows) longest = std::max(longest, lengths_[static_cast<size_t>(r)]);
        int64_t from = s.blocks_done;
        const int64_t to = (longest + kKeyBlock - 1) / kKeyBlock;
        const int64_t pieces =
            Pieces(TileCost(static_cast<int64_t>(rows.size()), longest - from * kKeyBlock), to - from);
        if (pieces > 1 && AddParts(rows, from, to - (to - from) / pieces)) from = to - (to - from) / pieces;
        AddTiles(rows, from, to, -1, plan_.tiles);
      }
    }
  }

  // Into how many pieces blocks are divided that cost as much.
  [[nodiscard]] int64_t Pieces(int64_t cost, int64_t blocks) {
    if (shape_.threads == 1) return 1;
    if (total_ == 0) {
      for (const Segment& s : segments_) total_ += TileCost(s.end - s.begin, (s.shortest + s.longest) / 2);
    }
    const int64_t piece = std::max(kLeastPiece, total_ / (3 * shape_.threads));
    return std::clamp<int64_t>((cost + piece / 2) / piece, 1, blocks);
  }

  [[nodiscard]] int64_t TileCost(int64_t rows, int64_t keys) const {
    return keys * shape_.kv_heads * (4 + rows * group_) * shape_.head_size / 24;
  }

  // Divides rows and heads so that a tile has at most kAttentionRows of their pairs.
  void AddTiles(const std::vector<int32_t>& rows, int64_t from, int64_t to, int32_t part,
                std::vector<AttentionTile>& tiles) {
    const auto n = static_cast<int64_t>(rows.size());
    const auto first = static_cast<int64_t>(plan_.tile_rows.size());
    plan_.tile_rows.insert(plan_.tile_rows.end(), rows.begin(), rows.end());
    const int64_t most = std::max<int64_t>(1, kAttentionRows / group_), row_tiles = (n + most - 1) / most;
    for (int64_t t = 0; t < row_tiles; ++t) {
      const int64_t begin = n * t / row_tiles, count = n * (t + 1) / row_tiles - begin;
      // Whole KV heads, or of a very large group the heads that fit.
      const int64_t fit = kAttentionRows / (count * group_);
      const int64_t heads = fit >= 1 ? std::min(fit, shape_.kv_heads) * group_ : kAttentionRows;
      for (int64_t h = 0; h < shape_.heads;) {
        const int64_t left = fit >= 1 ? shape_.heads - h : group_ - h % group_;
        const int64_t end = h + std::min(heads, left);
        tiles.push_back({.first_row = static_cast<int32_t>(first + begin),
                         .rows = static_cast<int32_t>(count),
                         .head_begin = static_cast<int32_t>(h),
                         .head_end = static_cast<int32_t>(end),
                         .block_begin = static_cast<int32_t>(from),
                         .block_end = static_cast<int32_t>(to),
                         .part = part});
        h = end;
      }
    }
  }

  void Order(std::vector<AttentionTile>& tiles) {
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t i = 0; i < tiles.size(); ++i) {
      const AttentionTile& t = tiles[i];
      int64_t keys = 0;
      for (int32_t r = t.first_row; r < t.first_row + t.rows; ++r) {
        const int32_t row = plan_.tile_rows[static_cast<size_t>(r)];
        keys += std::clamp<int64_t>(lengths_[static_cast<size_t>(row)] - t.block_begin * kKeyBlock, 0,
                                    (t.block_end - t.block_begin) * kKeyBlock);
      }
      const int64_t heads = t.head_end - t.head_begin;
      const int64_t cost =
          (keys * heads + 4 * (keys / t.rows) * ((heads + group_ - 1) / group_)) * shape_.head_size / 24;
      order.emplace_back(-cost, i);
      plan_.cost += cost;
    }
    std::sort(order.begin(), order.end());
    std::vector<AttentionTile> sorted;
    for (const auto& [cost, i] : order) sorted.push_back(tiles[i]);
    tiles = std::move(sorted);
  }

  const std::span<const int32_t> first_run_, lengths_;
  const std::span<const KvRun> runs_;
  const AttentionShape shape_;
  const int64_t group_;
  std::vector<Segment> segments_;
  int64_t total_ = 0;
  int64_t planned_parts_ = 0;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan PlanAttention(std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                            std::span<const KvRun> runs, const AttentionShape& shape) {
  return Planner(first_run, lengths, runs, shape).Run();
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
