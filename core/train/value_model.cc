#include "core/train/value_model.h"

#include <utility>

#include "core/model/row_operations.h"
#include "core/train/packing.h"
#include "core/train/scoring.h"

namespace tidepool::train {
namespace {

int64_t ScorePlace(const model::Weights& weights) {
  int64_t place = -1;
  for (size_t i = 0; i < weights.layout().size(); ++i) {
    if (weights.layout()[i].name == "score") place = static_cast<int64_t>(i);
  }
  return place;
}

std::vector<float> ScoreWeights(const model::Weights& weights, model::Decoder& decoder) {  // [hidden]
  const int64_t d = weights.spec().hidden_size;
  auto* base = static_cast<std::byte*>(decoder.weights().data());
  const int64_t offset = weights.layout()[static_cast<size_t>(ScorePlace(weights))].offset;
  return model::ToHost(decoder.device(),
                       {base + offset * model::Bytes(weights.dtype()), 1, d, weights.dtype()});
}

std::vector<double> HeadOf(std::span<const float> head, std::span<const float> hidden,
                           std::span<const int32_t> sources) {
  const auto d = static_cast<int64_t>(head.size());
  std::vector<double> values;
  values.reserve(sources.size());
  for (const int32_t source : sources) {
    const float* x = hidden.data() + source * d;
    double v = 0;
    for (int64_t i = 0; i < d; ++i) v += double{x[i]} * double{head[static_cast<size_t>(i)]};
    values.push_back(v);
  }
  return values;
}

}  // namespace

ValueModel::ValueModel(model::Weights& weights, const ValueModelOptions& options)
    : weights_(weights),
      options_(options),
      decoder_(weights, options.device),
      gradients_(weights, *options.device, Keeper()) {}

std::unique_ptr<model::GradientKeeper> ValueModel::Keeper() {
  if (!options_.share_gradients || options_.shard.world == 1) return nullptr;
  auto keeper = std::make_unique<GradientShard>(weights_, options_.device, options_.shard);
  gradient_shard_ = keeper.get();
  return keeper;
}

StatusOr<std::unique_ptr<ValueModel>> ValueModel::Create(model::Weights& weights,
                                                         const ValueModelOptions& options) {
  if (!weights.spec().value_head) return InvalidArgument("value model: these weights have no value head");
  std::unique_ptr<ValueModel> m(new ValueModel(weights, options));
  m->score_ = ScorePlace(weights);
  TP_ASSIGN_OR_RETURN(m->optimizer_,
                      AdamW::Create(weights, m->decoder_.weights(), options.optimizer, options.shard));
  return m;
}

StatusOr<std::vector<std::vector<float>>> ValuesOf(const model::Weights& weights, model::Decoder& decoder,
                                                   int64_t micro_batch_tokens, std::span<const Row> rows,
                                                   std::span<const int64_t> places,
                                                   const ScoringProgress& progress) {
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, micro_batch_tokens));
  const std::vector<float> head = ScoreWeights(weights, decoder);
  std::vector<std::vector<float>> result(rows.size());
  int64_t done = 0;
  for (const auto& micro : micros) {
    if (progress && !progress(done++, static_cast<int64_t>(micros.size())))
      return Aborted("trainer: stopped between two micro-batches");
    const PackedBatch packed = Pack(rows, micro);
    const device::Array hidden = HiddenStates(decoder, weights, View(weights.spec(), rows, packed, nullptr));
    const std::vector<double> values =
        HeadOf(head, model::ToHost(decoder.device(), hidden.view), packed.sources);
    for (size_t k = 0; k < packed.rows.size(); ++k) {
      for (const int32_t pair : packed.pair_of[k])
        result[static_cast<size_t>(packed.rows[k])].push_back(
            static_cast<float>(values[static_cast<size_t>(pair)]));
    }
  }
  return result;
}

StatusOr<std::vector<std::vector<float>>> ValueModel::Values(std::span<const Row> rows,
                                                             std::span<const int64_t> places,
                                                             const ScoringProgress& progress) {
  return ValuesOf(weights_, decoder_, options_.micro_batch_tokens, rows, places, progress);
}

Status ValueModel::MicroStep(std::span<const Row> rows, std::span<const int64_t> micro, const Loss& loss) {
  const PackedBatch packed = Pack(rows, micro);
  auto [hidden, saved] = decoder_.ForwardTraining(
      {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs},
      options_.recompute);
  device::Device& device = decoder_.device();
  const std::vector<float> x = model::ToHost(device, hidden.view);
  const std::vector<float> head = ScoreWeights(weights_, decoder_);
  const std::vector<double> pairs = HeadOf(head, x, packed.sources);
  std::vector<std::vector<double>> values(packed.rows.size()), slopes(packed.rows.size());
  for (size_t k = 0; k < packed.rows.size(); ++k) {
    for (const int32_t pair : packed.pair_of[k]) values[k].push_back(pairs[static_cast<size_t>(pair)]);
    slopes[k].assign(values[k].size(), 0.0);
  }
  TP_RETURN_IF_ERROR(loss(packed.rows, values, slopes));
  std::vector<double> slope(pairs.size(), 0.0);
  for (size_t k = 0; k < packed.rows.size(); ++k) {
    for (size_t t = 0; t < slopes[k].size(); ++t)
      slope[static_cast<size_t>(packed.pair_of[k][t])] += slopes[k][t];
  }
  // d h = slope * score, d score = sum slope * h; a token that several pairs need receives their sum.
  const size_t d = head.size();
  std::vector<float> dx(x.size(), 0.0F), dscore_rounded(d);
  std::vector<double> dscore(d, 0.0);
  for (size_t p = 0; p < slope.size(); ++p) {
    if (slope[p] == 0) continue;
    const size_t at = static_cast<size_t>(packed.sources[p]) * d;
    for (size_t i = 0; i < d; ++i) {
      dx[at + i] += static_cast<float>(slope[p] * double{head[i]});
      dscore[i] += slope[p] * double{x[at + i]};
    }
  }
  for (size_t i = 0; i < d; ++i) dscore_rounded[i] = static_cast<float>(dscore[i]);
  const auto sum = device.Put(std::span<const float>(dscore_rounded));
  const auto width = static_cast<int64_t>(d);
  device.ColumnSum(device::ColumnSumArgs<float>{
      .rows = 1,
      .n = width,
      .x = static_cast<const float*>(sum->data()),
      .out = gradients_.At(weights_.layout()[static_cast<size_t>(score_)].offset)});
  const device::Array dhidden = device.Take(hidden.view.rows, width, hidden.view.dtype);
  model::FromHost(device, dx, dhidden.view);
  decoder_.Backward(std::move(saved), dhidden.view, gradients_);
  return OkStatus();
}

void ValueModel::ReleaseScratch() {
  decoder_.ReleaseScratch();
  gradients_.Release();
}

}  // namespace tidepool::train
