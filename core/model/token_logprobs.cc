#include <memory>

#include "core/model/decoder.h"

namespace tidepool::model {
namespace {

using device::BF16;

void CheckLogits(const device::View& logits, std::span<const int32_t> ids) {
  TP_CHECK(static_cast<int64_t>(ids.size()) == logits.rows)
      << ids.size() << " ids for " << logits.rows << " rows of logits";
  for (const int32_t id : ids) TP_CHECK(id >= 0 && id < logits.cols) << "token id " << id << " of " << logits.cols;
}

template <typename V>
const V* Data(const std::shared_ptr<device::Buffer>& buffer) {
  return buffer == nullptr ? nullptr : static_cast<const V*>(buffer->data());
}

}  // namespace

void TokenLogProbs(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                   float temperature, std::span<float> logprobs, std::span<float> entropy,
                   std::span<float> lse) {
  CheckLogits(logits, ids);
  TP_CHECK(temperature > 0) << "temperature " << temperature;
  TP_CHECK(logprobs.size() == ids.size() && (entropy.empty() || entropy.size() == ids.size()) &&
           (lse.empty() || lse.size() == ids.size()))
      << "outputs of another length than ids";
  if (ids.empty()) return;
  const int64_t n = logits.rows;
  const auto on_device = device.Put(ids);
  const device::Array out = device.Take(3, n, DType::kFloat32);
  const auto row = [&](int64_t i) { return out.view.Rows(i, 1).As<float>(); };
  const auto run = [&]<typename T>(T) {
    device.TokenLogProb(device::TokenLogProbArgs<T>{.rows = n,
                                                    .vocab = logits.cols,
                                                    .logits = logits.As<T>(),
                                                    .ids = Data<int32_t>(on_device),
                                                    .inv_temperature = 1.0F / temperature,
                                                    .logprob = row(0),
                                                    .entropy = entropy.empty() ? nullptr : row(1),
                                                    .lse = lse.empty() ? nullptr : row(2)});
  };
  logits.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
  for (auto [to, i] : {std::pair(logprobs, 0), std::pair(entropy, 1), std::pair(lse, 2)})
    if (!to.empty()) device.Download(to.data(), row(i), static_cast<int64_t>(to.size_bytes()));
}

void TokenLogProbsBackward(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                           float temperature, std::span<const float> lse, std::span<const float> entropy,
                           std::span<const float> dlogprobs, std::span<const float> dentropy) {
  CheckLogits(logits, ids);
  TP_CHECK(lse.size() == ids.size() && dlogprobs.size() == ids.size() && entropy.size() == dentropy.size() &&
           (entropy.empty() || entropy.size() == ids.size()))
      << "inputs of another length than ids";
  if (ids.empty()) return;
  const auto put = [&](std::span<const float> values) {
    return values.empty() ? std::shared_ptr<device::Buffer>() : device.Put(values);
  };
  const auto on_device = device.Put(ids);
  const auto l = put(lse), e = put(entropy), dl = put(dlogprobs), de = put(dentropy);
  const auto run = [&]<typename T>(T) {
    device.TokenLogProbBackward(device::TokenLogProbBackwardArgs<T>{.rows = logits.rows,
                                                                    .vocab = logits.cols,
                                                                    .logits = logits.As<T>(),
                                                                    .ids = Data<int32_t>(on_device),
                                                                    .inv_temperature = 1.0F / temperature,
                                                                    .lse = Data<float>(l),
                                                                    .entropy = Data<float>(e),
                                                                    .dlogprob = Data<float>(dl),
                                                                    .dentropy = Data<float>(de)});
  };
  logits.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
}

}  // namespace tidepool::model
