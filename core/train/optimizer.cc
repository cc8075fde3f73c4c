#include "core/train/optimizer.h"

#include <cmath>
#include <span>
#include <string>
#include <utility>

namespace tidepool::train {
namespace {

// The element of an array that is there or not.
template <typename V>
V* At(const std::shared_ptr<device::Buffer>& array, int64_t offset) {
  return array == nullptr ? nullptr : static_cast<V*>(array->data()) + offset;
}

}  // namespace

StatusOr<std::unique_ptr<AdamW>> AdamW::Create(model::Weights& weights, model::DeviceWeights& on_device,
                                               const AdamWOptions& o, const Shard& shard) {
  if (!(o.beta1 >= 0 && o.beta1 < 1) || !(o.beta2 >= 0 && o.beta2 < 1)) {
    return InvalidArgument("train.beta1 and train.beta2 must be in [0, 1)");
  }
  if (!(o.eps > 0)) return InvalidArgument("train.adam_eps must be above 0");
  if (!(o.weight_decay >= 0)) return InvalidArgument("train.weight_decay must be at least 0");
  if (!(o.max_grad_norm >= 0))
    return InvalidArgument("train.max_grad_norm must be at least 0 (0: no clipping)");
  std::unique_ptr<AdamW> a(new AdamW(weights, on_device, o, shard));
  device::Device& device = on_device.device();
  const int64_t n = a->owned_.size();
  if (n == 0) {
    return InvalidArgument("train.zero: a model of " + std::to_string(a->elements()) +
                           " elements leaves nothing for rank " + std::to_string(shard.rank) + " of " +
                           std::to_string(shard.world) + "; write 0");
  }
  TP_ASSIGN_OR_RETURN(a->m_, device.Allocate(n * 4));
  TP_ASSIGN_OR_RETURN(a->v_, device.Allocate(n * 4));
  if (weights.dtype() == model::DType::kBFloat16) {
    TP_ASSIGN_OR_RETURN(a->rest_, device.Allocate(n * 2));
  }
  TP_ASSIGN_OR_RETURN(a->square_sum_, device.Allocate((1 + device::kSquareParts) * sizeof(double)));
  return a;
}

device::SquareParts AdamW::SquareSum(const FlatGradients& gradients, const sharding::Interval& of) {
  device::SquareParts sum{};
  if (on_device_.part().rank == 0) {
    AddSquares(gradients, of, sum);
    return sum;
  }
  for (size_t i = 0; i < on_device_.layout().size(); ++i) {
    const model::Parameter& p = on_device_.layout()[i];
    if (!on_device_.everywhere(static_cast<int64_t>(i)))
      AddSquares(gradients, sharding::Common(of, {p.offset, p.offset + p.numel()}), sum);
  }
  return sum;
}

void AdamW::AddSquares(const FlatGradients& gradients, const sharding::Interval& of,
                       device::SquareParts& sum) {
  if (of.size() == 0) return;
  device::Device& device = on_device_.device();
  auto* here = At<double>(square_sum_, 0);
  const bool exact = device.sums_in_tiles();
  device.SquareSum({.n = of.size(),
                    .x = gradients.At(of.from),
                    .sum = here,
                    .parts = exact ? At<double>(square_sum_, 1) : nullptr});
  if (!exact) {
    sum[0] += device.Read(here, 1)[0];
    return;
  }
  const std::vector<double> parts = device.Read(At<double>(square_sum_, 1), device::kSquareParts);
  for (size_t k = 0; k < sum.size(); ++k) sum[k] += parts[k];
}

UpdateResult AdamW::Update(const FlatGradients& gradients, double learning_rate,
                           const device::SquareParts& squares, const std::function<void(int64_t to)>& wrote) {
  const double square_sum = device::TotalOf(squares);
  UpdateResult result;
  result.grad_norm = std::sqrt(square_sum);
  result.finite = std::isfinite(result.grad_norm);
  if (!result.finite) return result;
  on_device_.device().Upload(At<double>(square_sum_, 0), std::span<const double>(&square_sum, 1));
  ++updates_;
  weights_.dtype() == model::DType::kFloat32 ? UpdateAll<float>(gradients, learning_rate, wrote)
                                             : UpdateAll<device::BF16>(gradients, learning_rate, wrote);
  on_device_.Written();
  return result;
}

template <typename T>
void AdamW::UpdateAll(const FlatGradients& gradients, double learning_rate,
                      const std::function<void(int64_t to)>& wrote) {
  const auto t = static_cast<double>(updates_);
  for (const model::Parameter& p : on_device_.layout()) {
    const bool matrix = p.shape.size() > 1;
    const sharding::Interval mine = sharding::Common(owned_, {p.offset, p.offset + p.numel()});
    if (mine.size() == 0) continue;
    const int64_t at = mine.from - owned_.from;  // in the state
    on_device_.device().AdamW(device::AdamWArgs<T>{
        .n = mine.size(),
        .gradients = gradients.At(mine.from),
        .weights = static_cast<T*>(on_device_.data()) + mine.from,
        .rest = At<int16_t>(rest_, at),
        .m = At<float>(m_, at),
        .v = At<float>(v_, at),
        .beta1 = static_cast<float>(options_.beta1),
        .rest1 = static_cast<float>(1 - options_.beta1),
        .beta2 = static_cast<float>(options_.beta2),
        .rest2 = static_cast<float>(1 - options_.beta2),
        .eps = static_cast<float>(options_.eps),
        .decay = static_cast<float>(1 - (matrix ? learning_rate * options_.weight_decay : 0.0)),
        .step = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t))),
        .root = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
        .square_sum = At<double>(square_sum_, 0),
        .max_grad_norm = options_.max_grad_norm});
    if (wrote && on_device_.device().host_memory()) wrote(mine.to);
  }
}

std::vector<NamedBytes> AdamW::State() {
  std::vector<NamedBytes> state = {{"weights", weights_.store()}};
  for (const auto& [name, array] : {std::pair("master_rest", &rest_), {"m", &m_}, {"v", &v_}}) {
    if (*array == nullptr) continue;
    state.push_back({name, {on_device_.device(), (*array)->data(), (*array)->bytes()}});
    state.back().part = on_device_.part();
    if (shard_.world == 1) continue;
    const int64_t each = (*array)->bytes() / owned_.size();
    state.back().piece = {{owned_.from * each, owned_.to * each}, elements() * each};
  }
  state.push_back({"updates", std::as_writable_bytes(std::span(&updates_, 1))});
  return state;
}

int64_t AdamW::bytes() const {
  int64_t sum = 0;
  for (const auto& array : {rest_, m_, v_}) sum += array == nullptr ? 0 : array->bytes();
  return sum;
}

}  // namespace tidepool::train
