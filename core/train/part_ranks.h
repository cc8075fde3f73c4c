#pragma once
// The ranks that have the other parts of a model (core/model/cut.h), over their collective.

#include <span>
#include <string>
#include <vector>

#include "core/comm/collective.h"
#include "core/model/peers.h"

namespace tidepool::train {

// All throw model::PeersFailed.
class PartRanks final : public model::Peers {
 public:
  explicit PartRanks(comm::Collective& group, model::Cut what = model::Cut::kMatrices)
      : group_(group), what_(what) {}

  [[nodiscard]] model::Part part() const override { return {group_.rank(), group_.size(), what_}; }
  void AddUp(device::Device& device, const device::View& x, const char* what) override;
  void AddUpNodes(device::Device& device, const device::View& mine,
                  std::span<const std::vector<sharding::SumNode>> nodes, const device::View& out,
                  const char* what) override;
  std::vector<float> Gather(std::span<const float> mine, const char* what) override;
  void Gather(std::span<std::byte> bytes, std::span<const sharding::Interval> of_rank,
              const char* what) override;
  void Exchange(device::Device& device, const device::View& out, std::span<const sharding::Interval> to,
                const device::View& in, std::span<const sharding::Interval> from, const char* what) override;

  [[nodiscard]] comm::Collective& group() { return group_; }
  // Whether all say yes.
  bool Agree(bool yes);

 private:
  comm::Collective& group_;
  const model::Cut what_;
};

}  // namespace tidepool::train
