#include "core/train/group_update.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace tidepool::train {
namespace {

using sharding::Interval;

// Does `exchange` with n values of the device from `data` on, where the host has them. Those of another
// memory come to the host and go back, a piece at a time.
template <typename V, typename Exchange>
Status OnHost(device::Device& device, V* data, int64_t n, Exchange exchange) {
  if (device.host_memory()) return exchange(std::span<V>(data, static_cast<size_t>(n)), int64_t{0});
  constexpr int64_t kPiece = (int64_t{64} << 20) / static_cast<int64_t>(sizeof(V));  // the same on all ranks
  for (int64_t at = 0; at < n; at += kPiece) {
    std::vector<V> piece = device.Read(data + at, std::min(kPiece, n - at));
    TP_RETURN_IF_ERROR(exchange(std::span<V>(piece), at));
    device.Upload(data + at, std::span<const V>(piece));
  }
  return OkStatus();
}

}  // namespace

void AddTo(device::Device& device, float* sum, const float* more, int64_t n) {
  if (!device.host_memory())
    return device.ColumnSum(device::ColumnSumArgs<float>{.rows = 1, .n = n, .x = more, .out = sum});
  for (int64_t i = 0; i < n; ++i) sum[i] += more[i];
}

GroupGradients::GroupGradients(const Parts& parts, const comm::RankGroups& groups, bool sum_each_micro_batch)
    : p_(parts),
      groups_(groups),
      each_micro_batch_(sum_each_micro_batch || parts.shard != nullptr),
      of_rank_(sharding::OwnedByAll(parts.optimizer.elements(),
                                    groups.data == nullptr ? 1 : groups.data->size())) {
  const model::DeviceWeights& weights = parts.optimizer.on_device();
  const model::Part& part = weights.part();
  if (part.whole() || part.what == model::Cut::kMatrices) {
    AddRegion(groups.data, {0, parts.optimizer.elements()});
    return;
  }
  int64_t from = 0;  // of what stands beside each other with all ranks, or with those that have these experts
  for (size_t i = 0; i < weights.layout().size(); ++i) {
    const bool last = i + 1 == weights.layout().size(),
               everywhere = weights.everywhere(static_cast<int64_t>(i));
    if (!last && weights.everywhere(static_cast<int64_t>(i) + 1) == everywhere) continue;
    const int64_t end = last ? weights.elements() : weights.layout()[i + 1].offset;
    AddRegion(everywhere ? groups.data : groups.same, {from, end});
    from = end;
  }
}

void GroupGradients::AddRegion(comm::Collective* group, const Interval& of) {
  if (group == nullptr) return;
  std::vector<Interval> of_rank = sharding::OwnedByAll(of.size(), group->size());
  for (Interval& i : of_rank) i = {of.from + i.from, of.from + i.to};
  regions_.push_back({*group, of, std::move(of_rank)});
}

GroupGradients::~GroupGradients() {
  if (p_.shard != nullptr) p_.shard->Stop();
}

Status GroupGradients::Begin(int64_t micro_batches) {
  if (groups_.data == nullptr) return OkStatus();
  TP_ASSIGN_OR_RETURN(micro_batches_,
                      groups_.data->AllGather(static_cast<uint64_t>(micro_batches), "micro_batches"));
  const auto most = static_cast<int64_t>(*std::ranges::max_element(micro_batches_));
  most_micro_batches_ = most;
  if (p_.shard != nullptr) {
    p_.shard->Begin(*groups_.data, micro_batches_);
    passes_ = most;
  } else {
    passes_ = each_micro_batch_ && most > 1 ? most : 0;  // of one micro-batch both are the same
  }
  return OkStatus();
}

std::vector<uint8_t> GroupGradients::Has(const Region& region, int64_t pass) const {
  // Of ranks that compute with the experts of one part the first has it, if any of the ranks beside each
  // other that divide the experts has.
  const size_t each = micro_batches_.size() / region.of_rank.size();
  std::vector<uint8_t> has;
  for (size_t at = 0; at < micro_batches_.size(); at += each) {
    const auto most = *std::ranges::max_element(std::span(micro_batches_).subspan(at, each));
    has.push_back(static_cast<int64_t>(most) > pass ? 1 : 0);
  }
  return has;
}

// Of whole gradients: the sums to the rank's own intervals.
Status GroupGradients::Scatter(int64_t pass) {
  if (comm::DeviceSum* sum = groups_.data->device_sum(); sum != nullptr && !p_.device.host_memory())
    return sum->AllReduceSum(p_.gradients.data(), p_.gradients.elements(), "gradients");
  for (const Region& region : regions_) {
    const std::vector<uint8_t> has = Has(region, pass);
    TP_RETURN_IF_ERROR(OnHost(
        p_.device, p_.gradients.data() + region.of.from, region.of.size(),
        [&](std::span<float> values, int64_t at) -> Status {
          const int64_t from = region.of.from + at;
          const std::vector<Interval> of_rank =
              sharding::Within(region.of_rank, {from, from + static_cast<int64_t>(values.size())});
          const Interval& mine = of_rank[static_cast<size_t>(region.group.rank())];
          return region.group.ReduceScatterSum(
              {.values = values,
               .has = has,
               .of_rank = of_rank,
               .into = values.subspan(static_cast<size_t>(mine.from), static_cast<size_t>(mine.size()))},
              "gradients");
        }));
  }
  return OkStatus();
}

Status GroupGradients::EndPass() {
  if (p_.shard != nullptr) return p_.shard->EndPass();
  TP_RETURN_IF_ERROR(Scatter(pass_));
  int64_t elements = 0;
  for (const Region& region : regions_) elements += region.mine().size();
  constexpr int64_t kEach = sizeof(float);
  if (pass_ == 0) sums_ = p_.device.Need(std::max<int64_t>(elements * kEach, 1));
  auto* all = static_cast<float*>(sums_->data());
  const bool last = pass_ + 1 == passes_;
  for (const Region& region : regions_) {
    const Interval& mine = region.mine();
    float* const sums = p_.gradients.data() + mine.from;
    const int64_t bytes = mine.size() * kEach;
    pass_ == 0 ? p_.device.Copy(all, sums, bytes) : AddTo(p_.device, all, sums, mine.size());
    if (last)
      p_.device.Copy(sums, all, bytes);
    else
      p_.device.Zero(p_.gradients.data() + region.of.from, region.of.size() * kEach);
    all += mine.size();
  }
  if (last) sums_.reset();
  ++pass_;
  return OkStatus();
}

Status GroupGradients::Finish() {
  if (p_.shard != nullptr || groups_.data == nullptr) return OkStatus();
  if (passes_ == 0) TP_RETURN_IF_ERROR(Scatter(0));
  const bool on_device = groups_.data->device_sum() != nullptr && !p_.device.host_memory();
  if (p_.optimizer.shard().world > 1 || (passes_ == 0 && on_device)) return OkStatus();
  for (const Region& region : regions_) {
    TP_RETURN_IF_ERROR(OnHost(p_.device, p_.gradients.data() + region.of.from, region.of.size(),
                              [&](std::span<float> values, int64_t at) {
                                const int64_t from = region.of.from + at,
                                              to = from + static_cast<int64_t>(values.size());
                                return region.group.AllGather(
                                    std::as_writable_bytes(values),
                                    sharding::Within(region.of_rank, {from, to}, sizeof(float)), "gradients");
                              }));
  }
  return OkStatus();
}

StatusOr<UpdateResult> GroupGradients::Update(double learning_rate) {
  AdamW& optimizer = p_.optimizer;
  const FlatGradients gradients =
      p_.shard != nullptr ? p_.shard->sums() : FlatGradients{.values = p_.gradients.data()};
  const bool sharded = optimizer.shard().world > 1;
  device::SquareParts squares{};
  if (sharded) {
    squares = optimizer.SquareSum(gradients, optimizer.owned());
    TP_RETURN_IF_ERROR(groups_.data->AllReduceSum(std::span<double>(squares), "gradient_norm"));
  } else {
    // As ranks with an interval each would add them up: a device whose sums are not exact gives the same bits
    // with a shared optimizer and without.
    for (const Interval& of : of_rank_) {
      const device::SquareParts more = optimizer.SquareSum(gradients, of);
      for (size_t k = 0; k < squares.size(); ++k) squares[k] += more[k];
    }
  }
  if (groups_.parts != nullptr)
    TP_RETURN_IF_ERROR(groups_.parts->AllReduceSum(std::span<double>(squares), "gradient_norm"));
  if (!sharded || p_.one_memory) {
    const UpdateResult result = optimizer.Update(gradients, learning_rate, squares);
    if (result.finite && sharded) {
      // All have written theirs before one reads; all had read before the norm was there.
      TP_RETURN_IF_ERROR(groups_.data->AllGather(uint64_t{0}, "weights").status());
      optimizer.on_device().Written();
    }
    return result;
  }
  return UpdateAndGather(gradients, learning_rate, squares);
}

// The norm, and so whether there is an update, is the same on all ranks.
StatusOr<UpdateResult> GroupGradients::UpdateAndGather(const FlatGradients& gradients, double learning_rate,
                                                       const device::SquareParts& squares) {
  AdamW& optimizer = p_.optimizer;
  model::DeviceWeights& weights = optimizer.on_device();
  const int64_t each = optimizer.weight_bytes(), bytes = optimizer.elements() * each;
  auto* const all = static_cast<std::byte*>(weights.data());
  UpdateResult result;
  if (weights.device().host_memory()) {
    const auto update = [&](const comm::Collective::Wrote& wrote) {
      result = optimizer.Update(gradients, learning_rate, squares, [&](int64_t to) { wrote(to * each); });
      return result.finite;
    };
    TP_RETURN_IF_ERROR(groups_.data->AllGatherWritten(
        {all, static_cast<size_t>(bytes)}, sharding::Within(of_rank_, {0, optimizer.elements()}, each),
        update, "weights"));
  } else {
    result = optimizer.Update(gradients, learning_rate, squares);
    if (!result.finite) return result;
    TP_RETURN_IF_ERROR(OnHost(weights.device(), all, bytes, [&](std::span<std::byte> piece, int64_t at) {
      const int64_t from = at / each, to = from + static_cast<int64_t>(piece.size()) / each;
      return groups_.data->AllGather(piece, sharding::Within(of_rank_, {from, to}, each), "weights");
    }));
  }
  if (result.finite) weights.Written();
  return result;
}

}  // namespace tidepool::train
