#include "core/model/row_operations.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

namespace tidepool::model {
namespace {

using device::BF16;

void CheckLogits(int64_t rows, int64_t vocabulary, std::span<const int32_t> ids) {
  TP_CHECK(static_cast<int64_t>(ids.size()) == rows)
      << ids.size() << " ids for " << rows << " rows of logits";
  for (const int32_t id : ids)
    TP_CHECK(id >= -1 && id < vocabulary) << "token id " << id << " of " << vocabulary;
}

template <typename V>
const V* Data(const std::shared_ptr<device::Buffer>& buffer) {
  return buffer == nullptr ? nullptr : static_cast<const V*>(buffer->data());
}

}  // namespace

namespace {

// Of columns [first, end): log-probabilities, entropies, lse and, with `with_top`, the largest logits, each a
// row; what is not wanted is there with any values, but the last.
std::vector<float> AskLogProbs(device::Device& device, const device::View& logits,
                               std::span<const int32_t> ids, float temperature,
                               const std::pair<int64_t, int64_t>& columns, bool with_entropy, bool with_lse,
                               bool with_top) {
  const auto [first, end] = columns;
  TP_CHECK(0 <= first && first <= end && end <= logits.cols) << "columns " << first << " to " << end;
  CheckLogits(logits.rows, end - first, ids);
  TP_CHECK(temperature > 0) << "temperature " << temperature;
  const int64_t n = logits.rows;
  const auto on_device = device.Put(ids);
  const device::Array out = device.Take(4, n, DType::kFloat32);
  const auto row = [&](int64_t i) { return out.view.Rows(i, 1).As<float>(); };
  const auto run = [&]<typename T>(T) {
    device.TokenLogProb(
        device::TokenLogProbArgs<T>{.rows = n,
                                    .vocab = end - first,
                                    .stride = logits.cols,
                                    .logits = logits.As<T>() + first,
                                    .ids = Data<int32_t>(on_device),
                                    .inv_temperature = device::InverseTemperature(temperature),
                                    .logprob = row(0),
                                    .entropy = with_entropy ? row(1) : nullptr,
                                    .lse = with_lse ? row(2) : nullptr,
                                    .top = with_top ? row(3) : nullptr});
  };
  logits.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
  return device.Read(row(0), (with_top ? 4 : with_lse ? 3 : with_entropy ? 2 : 1) * n);
}

}  // namespace

void TokenLogProbs(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                   float temperature, std::span<float> logprobs, std::span<float> entropy,
                   std::span<float> lse) {
  TP_CHECK(logprobs.size() == ids.size() && (entropy.empty() || entropy.size() == ids.size()) &&
           (lse.empty() || lse.size() == ids.size()))
      << "outputs of another length than ids";
  if (ids.empty()) return;
  const std::vector<float> all = AskLogProbs(device, logits, ids, temperature, {0, logits.cols},
                                             !entropy.empty(), !lse.empty(), /*with_top=*/false);
  for (auto [to, i] : {std::pair(logprobs, 0), std::pair(entropy, 1), std::pair(lse, 2)})
    std::copy_n(all.begin() + i * logits.rows, to.size(), to.begin());
}

std::vector<device::LogProbTile> TileLogProbs(device::Device& device, const device::View& logits,
                                              std::span<const int32_t> ids, float temperature,
                                              bool with_entropy, const std::pair<int64_t, int64_t>& columns) {
  std::vector<device::LogProbTile> tiles(ids.size());
  if (ids.empty()) return tiles;
  const std::vector<float> all = AskLogProbs(device, logits, ids, temperature, columns, with_entropy,
                                             /*with_lse=*/true, /*with_top=*/true);
  const size_t n = ids.size();
  for (size_t i = 0; i < n; ++i) {
    const bool here = ids[i] >= 0;
    tiles[i] = {.top = all[3 * n + i],
                .log_total = all[2 * n + i],
                .entropy = with_entropy ? all[n + i] : 0.0F,
                .logprob = here ? all[i] : 0.0F,
                .has_token = here};
  }
  return tiles;
}

void TokenLogProbsBackward(device::Device& device, const device::View& logits, std::span<const int32_t> ids,
                           float temperature, std::span<const float> lse, std::span<const float> entropy,
                           std::span<const float> dlogprobs, std::span<const float> dentropy) {
  CheckLogits(logits.rows, logits.cols, ids);
  TP_CHECK(lse.size() == ids.size() && dlogprobs.size() == ids.size() && entropy.size() == dentropy.size() &&
           (entropy.empty() || entropy.size() == ids.size()))
      << "inputs of another length than ids";
  if (ids.empty()) return;
  device::Parcel parcel;
  const int64_t id = parcel.Add(ids), l = parcel.Add(lse), e = parcel.Add(entropy),
                dl = parcel.Add(dlogprobs), de = parcel.Add(dentropy);
  parcel.Send(device);
  const bool with_entropy = !entropy.empty();
  const auto run = [&]<typename T>(T) {
    device.TokenLogProbBackward(
        device::TokenLogProbBackwardArgs<T>{.rows = logits.rows,
                                            .vocab = logits.cols,
                                            .logits = logits.As<T>(),
                                            .ids = parcel.At<int32_t>(id),
                                            .inv_temperature = device::InverseTemperature(temperature),
                                            .lse = parcel.At<float>(l),
                                            .entropy = with_entropy ? parcel.At<float>(e) : nullptr,
                                            .dlogprob = parcel.At<float>(dl),
                                            .dentropy = with_entropy ? parcel.At<float>(de) : nullptr});
  };
  logits.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
}

void GatherRows(device::Device& device, const device::View& from, std::span<const int32_t> rows,
                const device::View& out) {
  TP_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == from.cols)
      << rows.size() << " rows of " << from.cols << " into " << out.rows << " of " << out.cols;
  const auto ids = device.Put(rows);
  const auto run = [&]<typename T>(T) {
    device.GatherRows(device::GatherRowsArgs<T>{.rows = out.rows,
                                                .d = out.cols,
                                                .table_rows = from.rows,
                                                .ids = Data<int32_t>(ids),
                                                .table = from.As<T>(),
                                                .out = out.As<T>()});
  };
  out.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
}

std::vector<Drawn> DrawTokens(device::Device& device, const device::View& logits,
                              std::span<const int32_t> source, std::span<const device::SampleRow> how,
                              const device::SumTiles& vocabulary) {
  const auto n = static_cast<int64_t>(how.size());
  TP_CHECK(source.size() == how.size()) << source.size() << " sources of " << how.size() << " draws";
  device::Parcel parcel;
  const int64_t at_source = parcel.Add(source), at_how = parcel.Add(how);
  parcel.Send(device);
  const device::Array out = device.Take(3, n, DType::kFloat32);
  const auto run = [&]<typename T>(T) {
    device.Sample(device::SampleArgs<T>{.rows = n,
                                        .logit_rows = logits.rows,
                                        .vocab = logits.cols,
                                        .logits = logits.As<T>(),
                                        .source = parcel.At<int32_t>(at_source),
                                        .how = parcel.At<device::SampleRow>(at_how),
                                        .tiles = vocabulary.tiles > 1 ? &vocabulary : nullptr,
                                        .ids = static_cast<int32_t*>(out.view.data),
                                        .log_kept = out.view.Rows(1, 1).As<float>(),
                                        .logprob = out.view.Rows(2, 1).As<float>()});
  };
  logits.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
  const std::vector<float> all = device.Read(out.view.As<float>(), 3 * n);
  std::vector<Drawn> drawn(how.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    const float* at = all.data() + i;
    drawn[i] = {std::bit_cast<int32_t>(at[0]), at[n], at[2 * n]};
  }
  return drawn;
}

void AddRows(device::Device& device, const device::View& x, std::span<const int32_t> rows,
             const device::View& sum) {
  TP_CHECK(x.rows == static_cast<int64_t>(rows.size()) && x.cols == sum.cols)
      << rows.size() << " indices for " << x.rows << " rows";
  const auto ids = device.Put(rows);
  const auto run = [&]<typename T>(T) {
    device.ScatterAddRows(device::ScatterAddRowsArgs<T>{.rows = x.rows,
                                                        .d = x.cols,
                                                        .table_rows = sum.rows,
                                                        .ids = Data<int32_t>(ids),
                                                        .x = x.As<T>(),
                                                        .table = sum.As<float>()});
  };
  x.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
}

std::vector<float> ToHost(device::Device& device, const device::View& from) {
  if (from.dtype == DType::kFloat32) return device.Read(from.As<float>(), from.elements());
  const device::Array wide = device.Take(from.rows, from.cols, DType::kFloat32);
  device.Widen(
      device::WidenArgs<BF16>{.n = from.elements(), .x = from.As<BF16>(), .out = wide.view.As<float>()});
  return device.Read(wide.view.As<float>(), from.elements());
}

void FromHost(device::Device& device, std::span<const float> from, const device::View& to) {
  TP_CHECK(static_cast<int64_t>(from.size()) == to.elements())
      << from.size() << " numbers for " << to.elements();
  if (to.dtype == DType::kFloat32) return device.Upload(to.As<float>(), from);
  const auto wide = device.Put(from);
  device.Narrow(device::NarrowArgs<BF16>{.n = to.elements(), .x = Data<float>(wide), .out = to.As<BF16>()});
}

device::Array Rounded(device::Device& device, const device::Array& wide, DType dtype) {
  if (dtype == DType::kFloat32) return wide;
  device::Array out = device.Take(wide.view.rows, wide.view.cols, dtype);
  device.Narrow(device::NarrowArgs<BF16>{
      .n = wide.view.elements(), .x = wide.view.As<float>(), .out = out.view.As<BF16>()});
  return out;
}

}  // namespace tidepool::model
