#pragma once
// An optimizer update by all ranks of a group: gradients are added up over them, and every rank ends with the
// same weights.
//
// The sum of an element is formed by the rank that owns it (core/sharding), in the order of the ranks that
// have a micro-batch, and the norm from one sum of squares for each rank's interval. So the update is the
// same, to the bit, whether each rank has the optimizer's state of all elements and makes all of it
// (train.zero: 0: the sums go to all), or that of its own interval and makes that part (1: the new weights go
// to all), and whether it holds all of its own gradients or gives them away as they come (2). The latter has
// to form a sum after each micro-batch, where the others add up a rank's micro-batches first and round
// otherwise: they do as it does where they are asked to (TrainerOptions::sum_each_micro_batch). Where the
// weights are one memory of all ranks (3) new ones need not be told.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/device/device.h"
#include "core/model/weights.h"
#include "core/sharding/intervals.h"
#include "core/train/gradient_shard.h"
#include "core/train/optimizer.h"

namespace tidepool::train {

// sum += more, n elements of the device, on the calling thread or by its kernels.
void AddTo(device::Device& device, float* sum, const float* more, int64_t n);

// The gradients of one update of one rank on their way to those of all.
class GroupGradients {
 public:
  struct Parts {
    model::Gradients& gradients;
    GradientShard* shard = nullptr;  // which keeps them; null: they are whole
    AdamW& optimizer;                // its shard is that of the rank, or whole
    device::Device& device;
    bool one_memory = false;  // the weights are (shared_weights.h); each rank writes its own interval
  };
  GroupGradients(const Parts& parts, const comm::RankGroups& groups, bool sum_each_micro_batch);
  ~GroupGradients();
  GroupGradients(const GroupGradients&) = delete;
  GroupGradients& operator=(const GroupGradients&) = delete;

  // micro_batches: of this rank. Every rank calls it, and then EndPass passes() times: after each of its
  // micro-batches and, where others have more, for nothing. The group is busy meanwhile.
  Status Begin(int64_t micro_batches);
  [[nodiscard]] int64_t passes() const { return passes_; }
  [[nodiscard]] int64_t most_micro_batches() const { return most_micro_batches_; }  // of a rank
  Status EndPass();
  // After the last one, unless the update is given up.
  Status Finish();
  // requires Finish. Parts of the model (groups.parts) are updated each by its rank; the norm is of all.
  // After an error the weights may be those of no step.
  StatusOr<UpdateResult> Update(double learning_rate);

  // Elements of the space whose gradients the same ranks add up. All of it is one; but where experts are
  // divided, theirs are added up by the ranks that have them, between those of all ranks.
  struct Region {
    comm::Collective& group;
    sharding::Interval of;
    std::vector<sharding::Interval> of_rank;  // of the space
    [[nodiscard]] const sharding::Interval& mine() const {
      return of_rank[static_cast<size_t>(group.rank())];
    }
  };
  void AddRegion(comm::Collective* group, const sharding::Interval& of);
  // Which ranks of the region's group have this pass of a micro-batch each.
  [[nodiscard]] std::vector<uint8_t> Has(const Region& region, int64_t pass) const;
  Status Scatter(int64_t pass);
  StatusOr<UpdateResult> UpdateAndGather(const FlatGradients& gradients, double learning_rate,
                                         const device::SquareParts& squares);

  const Parts p_;
  const comm::RankGroups groups_;  // data: null where no other rank has rows
  const bool each_micro_batch_;
  const std::vector<sharding::Interval> of_rank_;
  std::vector<Region> regions_;          // gradients elsewhere have no other ranks' to be added to
  std::vector<uint64_t> micro_batches_;  // [rank]
  int64_t most_micro_batches_ = 0;
  int64_t passes_ = 0, pass_ = 0;
  std::shared_ptr<device::Buffer> sums_;  // of this rank's intervals, over the passes that have ended
};

}  // namespace tidepool::train
