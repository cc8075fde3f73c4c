#pragma once
// Gradients that ranks share (train.zero: 2): each keeps the sums over all ranks of its own interval
// (core/sharding), and of its own gradients only what the backward is at.
//
// A backward has its gradients part by part (model::GradientKeeper). As soon as a part is final its sums are
// formed by the ranks that own them, beside the backward of the next part, by a thread that has the group
// meanwhile; where the device's memory is not the host's, before the backward goes on. One part is under way
// at a time. So memory is the interval, the part that is computed and the one before it; and the embedding,
// where it is the head too: it has its first gradients before the last block and its last ones after the
// first (model::SharedGradientBytes).
//
// Sums are formed after each micro-batch, in the order of the ranks, and added up over micro-batches by their
// owner. Ranks that have fewer micro-batches than others come to each sum all the same, with nothing.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/shard.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/comm/collective.h"
#include "core/device/device.h"
#include "core/model/weights.h"
#include "core/sharding/intervals.h"
#include "core/train/optimizer.h"

namespace tidepool::train {

// Used by the thread that owns the device. Who begins an update calls EndPass until all are made, or Stop.
class GradientShard final : public model::GradientKeeper {
 public:
  GradientShard(const model::Weights& weights, std::shared_ptr<device::Device> device, const Shard& shard);
  ~GradientShard() override;

  // An update of zeros begins; micro_batches[rank]: how many it has. The group is this object's until the
  // last pass has ended, or Stop. requires that it is the shard's, and outlives the update.
  void Begin(comm::Collective& group, std::vector<uint64_t> micro_batches);
  [[nodiscard]] int64_t passes() const { return passes_; }  // the most micro-batches of a rank
  // After this rank's micro-batch, and in place of one that it does not have. The last one returns when all
  // sums are there. Errors of the group, of earlier sums too.
  Status EndPass();
  void Stop();  // the update is given up, or was made

  [[nodiscard]] FlatGradients sums() const;  // of the interval. requires that all passes have ended
  [[nodiscard]] double TakeWaited();         // seconds that a backward waited for sums since the last call
  [[nodiscard]] int64_t peak_bytes() const { return peak_bytes_; }  // since Begin

  float* At(int64_t offset) override;
  void Final(int64_t from, int64_t to) override;
  void Release() override;
  [[nodiscard]] int64_t held_bytes() const override;

 private:
  // A part whose sums are to be formed; null: this rank has no gradients of it.
  struct Job {
    size_t part = 0;
    int64_t pass = 0;
    std::shared_ptr<device::Buffer> values;
  };
  [[nodiscard]] sharding::Interval Part(size_t part) const { return {begins_[part], begins_[part + 1]}; }
  std::shared_ptr<device::Buffer> Take(int64_t bytes);
  void Give(Job job);
  void AwaitIdle();
  void Work();
  Status Sum(const Job& job);
  Status SumOnHost(const Job& job, const std::string& tag);
  Status SumOfDevice(const Job& job, const std::string& tag);
  [[nodiscard]] float* SumsAt(int64_t element);
  [[nodiscard]] std::vector<uint8_t> Has(int64_t pass) const;
  [[nodiscard]] Status status() TP_EXCLUDES(mu_);

  const std::shared_ptr<device::Device> device_;
  const std::vector<int64_t> begins_;
  const Shard shard_;
  const std::vector<sharding::Interval> of_rank_;
  comm::Collective* group_ = nullptr;
  std::vector<uint64_t> micro_batches_;
  int64_t passes_ = 0, pass_ = 0;
  size_t closed_ = 0;                                       // parts of this pass
  std::map<size_t, std::shared_ptr<device::Buffer>> open_;  // by part
  std::shared_ptr<device::Buffer> sums_, under_way_, spare_;
  int64_t peak_bytes_ = 0;
  double waited_s_ = 0;

  Mutex mu_;
  Condition changed_;
  std::optional<Job> job_ TP_GUARDED_BY(mu_);  // until its sums are there
  Status status_ TP_GUARDED_BY(mu_);
  bool ends_ TP_GUARDED_BY(mu_) = false;
  // Where the device's memory is the host's. waits: Stop ends it, after one sum at most
  std::jthread thread_;
};

}  // namespace tidepool::train
