#include "workers/device/part_pieces.h"

#include "core/model/layout.h"

namespace tidepool::workers {

std::vector<PartPiece> PiecesOfPart(const model::ModelSpec& spec, const model::Part& part,
                                    const sharding::Interval& of, int64_t each) {
  std::vector<PartPiece> pieces;
  for (const model::ParameterRuns& p : model::Runs(spec, part)) {
    for (const model::Run& run : p.runs) {
      for (int64_t row = 0; row < run.rows; ++row) {
        const int64_t from = (run.in_part + row * run.n) * each;
        const sharding::Interval here = sharding::Common(of, {from, from + run.n * each});
        if (here.size() <= 0) continue;
        pieces.push_back({(run.in_whole + row * run.stride) * each + here.from - from, here.size(),
                          here.from - of.from, p.everywhere});
      }
    }
  }
  return pieces;
}

int64_t LeastMoved(const model::ModelSpec& spec, const Shard& shard, model::Cut what,
                   const model::Part& serves) {
  const model::Part trains{shard.part, shard.parts, what};
  const auto in_whole = [&](const model::Part& part, const sharding::Interval& of) {
    if (trains.whole() && serves.whole()) return std::vector{of};  // of models that cannot be cut, too
    std::vector<sharding::Interval> all;
    for (const PartPiece& p : PiecesOfPart(spec, part, of)) all.push_back({p.whole, p.whole + p.n});
    return all;
  };
  const auto elements = [&](const model::Part& part) {
    return model::LayoutElements(model::PartSpec(spec, part));
  };
  return sharding::Missing(
      in_whole(trains, sharding::Owned(elements(trains), {.rank = shard.rank, .world = shard.world})),
      in_whole(serves, {0, elements(serves)}));
}

}  // namespace tidepool::workers
