#pragma once
// Where the elements of a part of a model (core/model/cut.h) stand in the index of the whole, and what a
// change from one division of a model to another has to move at least. Pure.

#include <cstdint>
#include <vector>

#include "core/base/config.h"
#include "core/base/shard.h"
#include "core/model/cut.h"
#include "core/model/spec.h"
#include "core/sharding/intervals.h"

namespace tidepool::workers {

// `n` units that stand behind each other, from `at` of the interval on, and in the whole from `whole` on.
struct PartPiece {
  int64_t whole = 0, n = 0, at = 0;
  bool everywhere = false;  // every part has them
};
// Of an interval of the part, in its order, in units of which an element has `each`.
std::vector<PartPiece> PiecesOfPart(const model::ModelSpec& spec, const model::Part& part,
                                    const sharding::Interval& of, int64_t each = 1);

// How the slots that train divide the model, where they do.
inline model::Cut CutOfTraining(const JobConfig& c) {
  return c.train.mesh.ep > 1 ? model::Cut::kExperts : model::Cut::kMatrices;
}

// Elements that a slot which trains as `shard`, whose parts are cut as `what` says, has to get, new weights
// being made by those who own them, so that it has the part `serves`.
int64_t LeastMoved(const model::ModelSpec& spec, const Shard& shard, model::Cut what,
                   const model::Part& serves);

}  // namespace tidepool::workers
