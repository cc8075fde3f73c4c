#include "core/train/scoring.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

namespace tidepool::train {

at::Tensor HiddenStates(const model::Decoder& decoder, const model::Weights& weights, const PackedBatch& packed) {
  const model::ModelSpec& s = weights.spec();
  const auto type = at::TensorOptions().dtype(weights.dtype() == model::DType::kFloat32 ? at::kFloat : at::kBFloat16);
  const auto tokens = static_cast<int64_t>(packed.ids.size());
  at::Tensor k = at::empty({s.layers, tokens, s.kv_heads, s.head_size}, type), v = at::empty(k.sizes(), type);
  return decoder.Forward({packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs}, {&k, &v});
}

StatusOr<std::vector<std::vector<float>>> ScoreRows(const model::Decoder& decoder, const model::Weights& weights, const ScoringOptions& o,
                                                    std::span<const Row> rows, std::span<const int64_t> places,
                                                    std::vector<std::vector<float>>* squares) {
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, o.micro_batch_tokens));
  std::vector<std::vector<float>> result(rows.size());
  if (squares != nullptr) squares->assign(rows.size(), {});
  const auto temperature = static_cast<float>(o.temperature);
  for (const auto& micro : micros) {
    const PackedBatch packed = Pack(rows, micro);
    const at::Tensor hidden = HiddenStates(decoder, weights, packed);
    const size_t pairs = packed.sources.size();
    std::vector<float> logprobs(pairs), square(squares == nullptr ? 0 : pairs);
    for (size_t from = 0; from < pairs; from += static_cast<size_t>(o.head_rows)) {
      const size_t n = std::min(static_cast<size_t>(o.head_rows), pairs - from);
      const at::Tensor index = at::from_blob(const_cast<int32_t*>(packed.sources.data() + from), {static_cast<int64_t>(n)}, at::TensorOptions().dtype(at::kInt));
      const at::Tensor logits = decoder.Logits(at::index_select(hidden, 0, index));
      model::TokenLogProbs(logits, std::span(packed.targets).subspan(from, n), temperature, std::span(logprobs).subspan(from, n));
      if (squares == nullptr) continue;
      const at::Tensor p = at::softmax(logits.to(at::kFloat).div(temperature), -1);
      const at::Tensor sums = p.mul(p).sum(-1).contiguous();
      std::copy_n(sums.data_ptr<float>(), n, square.begin() + static_cast<ptrdiff_t>(from));
    }
    for (size_t k = 0; k < packed.rows.size(); ++k) {
      const auto row = static_cast<size_t>(packed.rows[k]);
      for (const int32_t pair : packed.pair_of[k]) {
        result[row].push_back(logprobs[static_cast<size_t>(pair)]);
        if (squares != nullptr) (*squares)[row].push_back(square[static_cast<size_t>(pair)]);
      }
    }
  }
  return result;
}

}  // namespace tidepool::train
