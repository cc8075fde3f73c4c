#pragma once
// Where sums over what ranks divide (cut.h) are cut, so that they have the same bits whatever the number of
// ranks: at the places where two, three or four ranks would cut them, if these can cut the model, everywhere,
// by one rank as well. What lies between two places is a tile; tiles are added up as device::SumTiles says.
// A rank adds up those of its tiles that the tree of the whole adds up, too, and the others get these sums.
//
// More ranks than four cut at their own places alone: their sums are those of so many ranks. Pure; no
// LibTorch.

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/arguments.h"
#include "core/model/cut.h"
#include "core/model/spec.h"
#include "core/sharding/sum_tree.h"

namespace tidepool::model {

using sharding::SumNode;

class SumCuts {
 public:
  // in_tiles: whether the device that computes keeps to tiles; else the sums are cut where the ranks are.
  // requires CheckCut(whole, part.of)
  SumCuts(const ModelSpec& whole, const Part& part, bool in_tiles);

  [[nodiscard]] int32_t tiles() const { return static_cast<int32_t>(at_.size()) - 1; }  // of a whole sum
  // What each rank adds up by itself, by rank; one alone has all.
  [[nodiscard]] const std::vector<std::vector<SumNode>>& nodes() const { return nodes_; }
  // Tiles of the part, [first, end).
  [[nodiscard]] int32_t first() const { return ranks_[static_cast<size_t>(part_.rank)]; }
  [[nodiscard]] int32_t end() const { return ranks_[static_cast<size_t>(part_.rank) + 1]; }

  // Whether one rank alone cuts at the same places, so that all of them have its bits.
  [[nodiscard]] bool as_whole(const ModelSpec& whole) const;

  // Some tiles of a sum over segments of so many terms in the whole, with the places of the part's own terms.
  [[nodiscard]] device::SumTiles Of(const SumNode& some, std::span<const int64_t> segments) const;

 private:
  [[nodiscard]] int64_t Place(int64_t terms, int32_t tile) const {
    return terms * at_[static_cast<size_t>(tile)] / of_;
  }

  Part part_;
  bool in_tiles_;
  int64_t of_ = 1;
  std::vector<int64_t> at_;     // begin of each tile, and the end, in of_-ths
  std::vector<int32_t> ranks_;  // first tile of each rank, and the end
  std::vector<std::vector<SumNode>> nodes_;
};

}  // namespace tidepool::model
