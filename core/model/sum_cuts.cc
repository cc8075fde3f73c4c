#include "core/model/sum_cuts.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/check.h"

namespace tidepool::model {
namespace {

// Whether so many ranks cut every sum between words of two bfloat16.
bool CutsWords(const ModelSpec& s, int64_t ranks) {
  return CheckCut(s, ranks).ok() && s.intermediate_size / ranks % 2 == 0 &&
         s.heads / ranks * s.head_size % 2 == 0;
}

}  // namespace

SumCuts::SumCuts(const ModelSpec& whole, const Part& part, bool in_tiles) : part_(part), in_tiles_(in_tiles) {
  constexpr int64_t kMostRanks = 4;
  std::vector<int64_t> cutters = {part.of};
  if (in_tiles && part.of <= kMostRanks) {
    for (int64_t ranks = 2; ranks <= kMostRanks; ++ranks)
      if (CutsWords(whole, ranks)) cutters.push_back(ranks);
  }
  for (const int64_t ranks : cutters) of_ = std::lcm(of_, ranks);
  std::set<int64_t> places;
  for (const int64_t ranks : cutters)
    for (int64_t i = 0; i <= ranks; ++i) places.insert(of_ / ranks * i);
  at_.assign(places.begin(), places.end());
  for (int64_t rank = 0; rank <= part.of; ++rank)
    ranks_.push_back(static_cast<int32_t>(std::ranges::find(at_, of_ / part.of * rank) - at_.begin()));
  for (int64_t rank = 0; rank < part.of; ++rank) {
    std::vector<SumNode>& nodes = nodes_.emplace_back();
    const int32_t end = ranks_[static_cast<size_t>(rank) + 1];
    for (int32_t first = ranks_[static_cast<size_t>(rank)]; first < end;) {
      int32_t n = 1;  // the largest that the tree has there
      while (first % (2 * n) == 0 && first + 2 * n <= end) n *= 2;
      nodes.push_back({first, n});
      first += n;
    }
  }
  if (part.whole()) nodes_ = {{{0, tiles()}}};
}

bool SumCuts::as_whole(const ModelSpec& whole) const {
  const SumCuts one(whole, {}, in_tiles_);
  return one.of_ == of_ && one.at_ == at_;
}

device::SumTiles SumCuts::Of(const SumNode& some, std::span<const int64_t> segments) const {
  TP_CHECK(some.tiles <= device::SumTiles::kMost && segments.size() <= device::SumTiles::kSegments &&
           some.first >= 0 && some.first + some.tiles <= tiles())
      << some.tiles << " tiles of " << segments.size() << " segments";
  device::SumTiles t{.tiles = some.tiles, .segments = static_cast<int32_t>(segments.size()), .unit = 0};
  int64_t before = 0;  // terms of the part in earlier segments
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t mine = Place(segments[s], first());
    const auto here = [&](int32_t tile) { return before + Place(segments[s], tile) - mine; };
    t.begin[s] = here(some.first);
    for (int32_t i = 0; i < some.tiles; ++i) t.end[s][i] = here(some.first + i + 1);
    for (int32_t i = 1; i <= tiles(); ++i) t.unit = std::gcd(t.unit, Place(segments[s], i));
    before += Place(segments[s], end()) - mine;
  }
  return t;
}

}  // namespace tidepool::model
