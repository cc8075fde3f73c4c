#pragma once
// An optimizer update by all ranks of a group: gradients are added up over them, and every rank ends with the
// same weights.
//
// The sum of an element is formed by the rank that owns it (core/sharding), in the order of the ranks, and
// the norm from one sum of squares for each rank's interval. So the update is the same, to the bit, whether
// each rank has the optimizer's state of all elements and makes all of it (train.zero: 0: the sums go to
// all), or that of its own interval and makes that part (train.zero: 1: the new weights go to all).

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/device/device.h"
#include "core/model/weights.h"
#include "core/train/optimizer.h"

namespace tidepool::train {

// Gradients of all ranks; those of a shard are of use in its own interval alone.
Status AddOtherRanks(model::Gradients& gradients, const AdamW& optimizer, device::Device& device,
                     comm::Collective& group);
// requires AddOtherRanks where other ranks have rows, and that the optimizer's shard is that of the rank or
// whole. Parts of the model (groups.tensor) are updated each by its rank; the norm is of all. After an error
// the weights may be those of no step.
StatusOr<UpdateResult> UpdateTogether(model::Gradients& gradients, double learning_rate, AdamW& optimizer,
                                      const comm::RankGroups& groups);

}  // namespace tidepool::train
