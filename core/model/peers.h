#pragma once
// The ranks that each have a part of one model (cut.h), as its decoder asks for them. Where matrices are cut
// all of them compute the same rows; where experts are divided each has rows of its own. All ask for the same
// things in the same order. What cannot be had is thrown as PeersFailed, from
// the midst of a forward or backward; the ranks are of no use to each other then.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/cut.h"
#include "core/sharding/intervals.h"
#include "core/sharding/sum_tree.h"

namespace tidepool::model {

class PeersFailed : public std::runtime_error {
 public:
  explicit PeersFailed(const Status& why) : std::runtime_error(why.ToString()), status_(why) {}
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

class Peers {
 public:
  virtual ~Peers() = default;
  [[nodiscard]] virtual Part part() const = 0;  // of this rank
  // x, of float32 or bfloat16, becomes the sum of all ranks' x, formed in float32 in the order of the ranks.
  // `what` names it in errors.
  virtual void AddUp(device::Device& device, const device::View& x, const char* what) = 0;
  // `out` becomes the sum of what all ranks have, by the tree of core/sharding/sum_tree.h, rounded once:
  // `nodes` by rank, this one's in float32 behind each other in `mine`, each of the size of `out`.
  virtual void AddUpNodes(device::Device& device, const device::View& mine,
                          std::span<const std::vector<sharding::SumNode>> nodes, const device::View& out,
                          const char* what) = 0;
  // Everybody's numbers, rank after rank. All have as many.
  virtual std::vector<float> Gather(std::span<const float> mine, const char* what) = 0;
  // Every rank gets what each rank has in its interval of `bytes`.
  virtual void Gather(std::span<std::byte> bytes, std::span<const sharding::Interval> of_rank,
                      const char* what) = 0;
  // Rows of `out` go to the ranks, to[rank] to each, and rows of `in` come from them; both of one width.
  virtual void Exchange(device::Device& device, const device::View& out,
                        std::span<const sharding::Interval> to, const device::View& in,
                        std::span<const sharding::Interval> from, const char* what) = 0;
};

}  // namespace tidepool::model
