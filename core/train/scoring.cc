#include "core/train/scoring.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/max.h>

#include <algorithm>

#include "core/model/routing.h"
#include "core/model/row_operations.h"

namespace tidepool::train {

model::RaggedBatch View(const model::ModelSpec& spec, std::span<const Row> rows, const PackedBatch& packed,
                        std::vector<int32_t>* experts) {
  if (experts == nullptr)
    return {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs};
  const auto row_bytes = static_cast<size_t>(model::RoutingBytes(spec)),
             k = static_cast<size_t>(spec.moe.experts_per_token);
  const auto id_bytes = static_cast<size_t>(model::RoutingIdBytes(spec));
  const auto layers = static_cast<size_t>(spec.sparse_layers()), tokens = packed.ids.size();
  for (size_t i = 0; i < tokens && row_bytes > 0; ++i) {
    const Row& row = rows[static_cast<size_t>(packed.row_of[i])];
    const int64_t t = packed.positions[i] + 1 - static_cast<int64_t>(row.prompt.size());
    if (t < 0 || (static_cast<size_t>(t) + 1) * row_bytes > row.routing.size()) continue;
    if (experts->empty()) experts->assign(layers * tokens * k, -1);
    const auto* ids =
        reinterpret_cast<const unsigned char*>(row.routing.data()) + static_cast<size_t>(t) * row_bytes;
    for (size_t l = 0; l < layers; ++l) {
      for (size_t j = 0; j < k; ++j, ids += id_bytes)
        (*experts)[(l * tokens + i) * k + j] = model::GetRoutingId(spec, ids);
    }
  }
  return {packed.ids,     packed.positions, packed.slots, packed.first_run,
          packed.lengths, packed.runs,      *experts};
}

device::Array HiddenStates(const model::Decoder& decoder, const model::Weights& weights,
                           const model::RaggedBatch& batch) {
  const model::ModelSpec& s = decoder.spec();
  const int64_t slots = s.layers * static_cast<int64_t>(batch.ids.size()), width = s.kv_heads * s.head_size;
  device::Device& device = decoder.device();
  const device::Array k = device.Take(slots, width, weights.dtype()),
                      v = device.Take(slots, width, weights.dtype());
  return decoder.Forward(batch, {k.view, v.view});
}

StatusOr<std::vector<std::vector<float>>> ScoreRows(const model::Decoder& decoder,
                                                    const model::Weights& weights, const ScoringOptions& o,
                                                    std::span<const Row> rows,
                                                    std::span<const int64_t> places,
                                                    const ScoringExtras& extras) {
  const int64_t routing_bytes = o.replay ? model::RoutingBytes(weights.spec()) : 0;
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, o.micro_batch_tokens, routing_bytes));
  std::vector<std::vector<float>> result(rows.size());
  for (auto* extra : {extras.squares, extras.likeliest}) {
    if (extra != nullptr) extra->assign(rows.size(), {});
  }
  device::Device& device = decoder.device();
  const auto temperature = static_cast<float>(o.temperature);
  const auto rounds = static_cast<size_t>(decoder.Rounds(static_cast<int64_t>(micros.size())));
  for (size_t done = 0; done < rounds; ++done) {
    if (extras.progress && !extras.progress(static_cast<int64_t>(done), static_cast<int64_t>(rounds)))
      return Aborted("trainer: stopped between two micro-batches");
    if (done >= micros.size()) {
      decoder.Serve();
      continue;
    }
    const std::vector<int64_t>& micro = micros[done];
    const PackedBatch packed = Pack(rows, micro, routing_bytes);
    std::vector<int32_t> experts;
    const device::Array hidden =
        HiddenStates(decoder, weights, View(weights.spec(), rows, packed, o.replay ? &experts : nullptr));
    const size_t pairs = packed.sources.size();
    std::vector<float> logprobs(pairs), squares(extras.squares == nullptr ? 0 : pairs),
        likeliest(extras.likeliest == nullptr ? 0 : pairs);
    for (size_t from = 0; from < pairs; from += static_cast<size_t>(o.head_rows)) {
      const size_t n = std::min(static_cast<size_t>(o.head_rows), pairs - from);
      const device::Array rows_of = device.Take(static_cast<int64_t>(n), hidden.view.cols, hidden.view.dtype);
      model::GatherRows(device, hidden.view, std::span(packed.sources).subspan(from, n), rows_of.view);
      const device::Array logits = decoder.Logits(rows_of.view);
      const auto targets = std::span(packed.targets).subspan(from, n);
      std::vector<float> lse(n);
      decoder.TokenLogProbs(logits.view, targets, temperature, std::span(logprobs).subspan(from, n), {}, lse);
      if (extras.likeliest == nullptr && extras.squares == nullptr) continue;
      std::vector<float> values = model::ToHost(device, logits.view);
      const at::Tensor all = at::from_blob(values.data(), {logits.view.rows, logits.view.cols},
                                           at::TensorOptions().dtype(at::kFloat));
      if (extras.likeliest != nullptr) {
        const auto [top, best] = all.max(-1);
        std::vector<float> mine;  // the largest logit of each row, and its token, which float32 holds exactly
        for (size_t i = 0; i < n; ++i) {
          mine.push_back(top.contiguous().data_ptr<float>()[i]);
          mine.push_back(
              static_cast<float>(best.contiguous().data_ptr<int64_t>()[i] + decoder.first_token()));
        }
        const std::vector<float> of_ranks = decoder.OfAllRanks(mine);
        for (size_t i = 0; i < n; ++i) {
          size_t at = 2 * i;
          for (size_t other = at; other < of_ranks.size(); other += 2 * n)
            if (of_ranks[other] > of_ranks[at]) at = other;
          likeliest[from + i] = of_ranks[at + 1] == static_cast<float>(targets[i]) ? 1.0F : 0.0F;
        }
      }
      if (extras.squares == nullptr) continue;
      const at::Tensor of_row =
          at::from_blob(lse.data(), {logits.view.rows, 1}, at::TensorOptions().dtype(at::kFloat));
      const at::Tensor p = at::exp(all.div(temperature).sub(of_row)), p2 = p.mul(p).contiguous();
      std::ranges::copy(decoder.SumOverVocabulary({p2.data_ptr<float>(), static_cast<size_t>(p2.numel())}),
                        squares.begin() + static_cast<int64_t>(from));
    }
    for (size_t k = 0; k < packed.rows.size(); ++k) {
      const auto row = static_cast<size_t>(packed.rows[k]);
      for (const int32_t pair : packed.pair_of[k]) {
        result[row].push_back(logprobs[static_cast<size_t>(pair)]);
        for (const auto& [out, values] :
             {std::pair(extras.squares, &squares), std::pair(extras.likeliest, &likeliest)}) {
          if (out != nullptr) (*out)[row].push_back((*values)[static_cast<size_t>(pair)]);
        }
      }
    }
  }
  return result;
}

}  // namespace tidepool::train
