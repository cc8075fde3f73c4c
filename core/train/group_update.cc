#include "core/train/group_update.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

namespace tidepool::train {
namespace {

using sharding::Interval;

// What `of_rank` has of [at, at + n), from there on, in units of `each`.
std::vector<Interval> Cut(std::span<const Interval> of_rank, int64_t at, int64_t n, int64_t each) {
  std::vector<Interval> cut;
  for (const Interval& i : of_rank) {
    const Interval part = sharding::Common(i, {at, at + n});
    cut.push_back(part.size() == 0 ? Interval{} : Interval{(part.from - at) * each, (part.to - at) * each});
  }
  return cut;
}

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

// Added up in the order of the ranks.
StatusOr<double> SumOfAll(comm::Collective& group, double mine) {
  TP_ASSIGN_OR_RETURN(const auto all, group.AllGather(std::bit_cast<uint64_t>(mine), "gradient_norm"));
  double sum = 0;
  for (const uint64_t one : all) sum += std::bit_cast<double>(one);
  return sum;
}

}  // namespace

Status AddOtherRanks(model::Gradients& gradients, const AdamW& optimizer, device::Device& device,
                     comm::Collective& group) {
  if (comm::DeviceSum* sum = group.device_sum(); sum != nullptr && !device.host_memory())
    return sum->AllReduceSum(gradients.data(), gradients.elements(), "gradients");
  const std::vector<Interval> of_rank = sharding::OwnedByAll(gradients.elements(), group.size());
  return OnHost(device, gradients.data(), gradients.elements(),
                [&](std::span<float> values, int64_t at) -> Status {
                  const auto n = static_cast<int64_t>(values.size());
                  TP_RETURN_IF_ERROR(group.ReduceScatterSum(values, Cut(of_rank, at, n, 1), "gradients"));
                  if (optimizer.shard().world > 1) return OkStatus();
                  return group.AllGather(std::as_writable_bytes(values), Cut(of_rank, at, n, sizeof(float)),
                                         "gradients");
                });
}

StatusOr<UpdateResult> UpdateTogether(model::Gradients& gradients, double learning_rate, AdamW& optimizer,
                                      const comm::RankGroups& groups) {
  const std::vector<Interval> of_rank =
      sharding::OwnedByAll(optimizer.elements(), groups.data == nullptr ? 1 : groups.data->size());
  const bool sharded = optimizer.shard().world > 1;
  double square_sum = 0;
  if (sharded) {
    TP_ASSIGN_OR_RETURN(square_sum,
                        SumOfAll(*groups.data, optimizer.SquareSum(gradients.data(), optimizer.owned())));
  } else {
    for (const Interval& of : of_rank) square_sum += optimizer.SquareSum(gradients.data(), of);
  }
  if (groups.tensor != nullptr) {
    TP_ASSIGN_OR_RETURN(square_sum, SumOfAll(*groups.tensor, square_sum));
  }
  const UpdateResult result = optimizer.Update(gradients.data(), learning_rate, square_sum);
  if (!result.finite || !sharded) return result;
  model::DeviceWeights& weights = optimizer.on_device();
  const int64_t each = optimizer.weight_bytes();
  TP_RETURN_IF_ERROR(OnHost(
      weights.device(), static_cast<std::byte*>(weights.data()), optimizer.elements() * each,
      [&](std::span<std::byte> bytes, int64_t at) {
        return groups.data->AllGather(
            bytes, Cut(of_rank, at / each, static_cast<int64_t>(bytes.size()) / each, each), "weights");
      }));
  weights.Written();
  return result;
}

}  // namespace tidepool::train
