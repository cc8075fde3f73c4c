#include "core/train/value_model.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/train/packing.h"
#include "core/train/scoring.h"

namespace tidepool::train {

ValueModel::ValueModel(model::Weights& weights, const ValueModelOptions& options)
    : weights_(weights),
      options_(options),
      decoder_(weights, {.row_blocks = options.row_blocks}),
      gradients_(weights) {}

StatusOr<std::unique_ptr<ValueModel>> ValueModel::Create(model::Weights& weights,
                                                         const ValueModelOptions& options) {
  if (!weights.spec().value_head) return InvalidArgument("value model: these weights have no value head");
  std::unique_ptr<ValueModel> m(new ValueModel(weights, options));
  for (size_t i = 0; i < weights.layout().size(); ++i) {
    if (weights.layout()[i].name == "score") m->score_ = static_cast<int64_t>(i);
  }
  TP_ASSIGN_OR_RETURN(m->optimizer_, AdamW::Create(weights, options.optimizer));
  return m;
}

std::vector<double> ValueModel::HeadOf(const at::Tensor& hidden, std::span<const int32_t> sources) const {
  const at::Tensor h = hidden.to(at::kFloat).contiguous(),
                   head = weights_.Get(score_).to(at::kFloat).contiguous();
  const int64_t d = h.size(1);
  const auto* rows = h.const_data_ptr<float>();
  const auto* s = head.const_data_ptr<float>();
  std::vector<double> values;
  values.reserve(sources.size());
  for (const int32_t source : sources) {
    const float* x = rows + source * d;
    double v = 0;
    for (int64_t i = 0; i < d; ++i) v += double{x[i]} * double{s[i]};
    values.push_back(v);
  }
  return values;
}

StatusOr<std::vector<std::vector<float>>> ValueModel::Values(std::span<const Row> rows,
                                                             std::span<const int64_t> places,
                                                             const ScoringProgress& progress) {
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, options_.micro_batch_tokens));
  std::vector<std::vector<float>> result(rows.size());
  int64_t done = 0;
  for (const auto& micro : micros) {
    if (progress && !progress(done++, static_cast<int64_t>(micros.size())))
      return Aborted("trainer: stopped between two micro-batches");
    const PackedBatch packed = Pack(rows, micro);
    const std::vector<double> values = HeadOf(
        HiddenStates(decoder_, weights_, View(weights_.spec(), rows, packed, nullptr)), packed.sources);
    for (size_t k = 0; k < packed.rows.size(); ++k) {
      for (const int32_t pair : packed.pair_of[k])
        result[static_cast<size_t>(packed.rows[k])].push_back(
            static_cast<float>(values[static_cast<size_t>(pair)]));
    }
  }
  return result;
}

Status ValueModel::MicroStep(std::span<const Row> rows, std::span<const int64_t> micro, const Loss& loss) {
  const PackedBatch packed = Pack(rows, micro);
  auto [hidden, saved] = decoder_.ForwardTraining(
      {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs},
      options_.recompute);
  const std::vector<double> pairs = HeadOf(hidden, packed.sources);
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
  at::Tensor dhidden = at::zeros(hidden.sizes(), at::TensorOptions().dtype(at::kFloat));
  const at::Tensor h = hidden.to(at::kFloat).contiguous(),
                   head = weights_.Get(score_).to(at::kFloat).contiguous();
  const int64_t d = h.size(1);
  const auto* x = h.const_data_ptr<float>();
  const auto* s = head.const_data_ptr<float>();
  auto* dx = dhidden.mutable_data_ptr<float>();
  std::vector<double> dscore(static_cast<size_t>(d), 0.0);
  for (size_t p = 0; p < slope.size(); ++p) {
    if (slope[p] == 0) continue;
    const int64_t at = packed.sources[p] * d;
    for (int64_t i = 0; i < d; ++i) {
      dx[at + i] += static_cast<float>(slope[p] * double{s[i]});
      dscore[static_cast<size_t>(i)] += slope[p] * double{x[at + i]};
    }
  }
  const at::Tensor sum = gradients_.Get(score_);
  auto* out = sum.mutable_data_ptr<float>();
  for (int64_t i = 0; i < d; ++i) out[i] += static_cast<float>(dscore[static_cast<size_t>(i)]);
  decoder_.Backward(std::move(saved), dhidden.to(hidden.scalar_type()), gradients_);
  return OkStatus();
}

void ValueModel::ReleaseScratch() {
  decoder_.ReleaseScratch();
  gradients_.Release();
}

}  // namespace tidepool::train
