#include "tests/core/engine/reference_generator.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/device/cpu/sampler.h"
#include "core/engine/sampling.h"
#include "core/model/decoder.h"
#include "core/model/routing.h"
#include "core/model/row_operations.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {

Record ReferenceGenerate(const model::Weights& weights, uint64_t seed, const SampleId& tid,
                         const std::vector<int32_t>& prompt, int64_t count, const SamplingParams& sampling) {
  const model::ModelSpec& spec = weights.spec();
  const model::Decoder decoder(weights, model::AnyDevice());
  device::Device& device = decoder.device();
  Record record;
  std::vector<int32_t> tokens = prompt;
  device::SamplerScratch scratch;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<int32_t>(tokens.size());
    const model::KvOnDevice memory(device, spec, weights.dtype(), n);
    std::vector<int32_t> place(tokens.size());
    std::iota(place.begin(), place.end(), 0);
    std::vector<int32_t> lengths(tokens.size());
    std::iota(lengths.begin(), lengths.end(), 1);
    const std::vector<int32_t> first_run(tokens.size(), 0);
    const std::vector<device::KvRun> runs = {{.start = 0, .count = n}};
    std::vector<int32_t> routed;
    const device::Array hidden = decoder.Forward({.ids = tokens,
                                                  .positions = place,
                                                  .slots = place,
                                                  .first_run = first_run,
                                                  .lengths = lengths,
                                                  .runs = runs,
                                                  .routed = &routed},
                                                 memory.view());
    const device::Array logits = decoder.Logits(hidden.view.Rows(n - 1, 1));
    const float u = SampleUniform(seed, SampleUid(tid), static_cast<uint32_t>(n), 0);
    const std::vector<float> row = model::ToHost(device, logits.view);
    const device::Draw draw =
        device::DrawToken(row.data(), spec.vocab_size, SampleRowOf(sampling, u), scratch);
    TP_CHECK(draw.id >= 0) << "token " << n;
    float logprob = 0;
    decoder.TokenLogProbs(logits.view, std::vector<int32_t>{draw.id},
                          sampling.temperature == 0 ? 1.0F : sampling.temperature, std::span(&logprob, 1));
    record.ids.push_back(draw.id);
    record.logprobs.push_back(logprob);
    record.log_kept.push_back(draw.log_kept);
    const auto experts = static_cast<size_t>(spec.moe.experts_per_token);
    for (size_t layer = 0; layer < static_cast<size_t>(spec.sparse_layers()); ++layer) {
      for (size_t e = 0; e < experts; ++e) {
        std::array<unsigned char, 2> bytes{};
        model::PutRoutingId(spec, routed[((layer + 1) * static_cast<size_t>(n) - 1) * experts + e],
                            bytes.data());
        record.routing.append(bytes.begin(), bytes.begin() + model::RoutingIdBytes(spec));
      }
    }
    tokens.push_back(draw.id);
    if (std::ranges::find(spec.eos_token_ids, draw.id) != spec.eos_token_ids.end()) break;
  }
  return record;
}

std::unique_ptr<model::Weights> TinyModel(model::DType dtype, uint64_t seed, bool experts) {
  model::ModelSpec spec;
  spec.vocab_size = 97;
  spec.hidden_size = 64;
  spec.intermediate_size = 96;
  spec.layers = 2;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 16;
  spec.max_position = 256;
  spec.tie_embeddings = true;
  spec.eos_token_ids = {96};
  if (experts) {  // more than a byte can name
    spec.architecture = "qwen3_moe";
    spec.qk_norm = true;
    spec.layers = 3;
    spec.moe = {.experts = 300,
                .experts_per_token = 3,
                .intermediate_size = 16,
                .renormalize = true,
                .dense_layers = {1}};
  }
  auto weights = model::Weights::Create(spec, dtype);
  TP_CHECK(weights.ok()) << weights.status().ToString();
  (*weights)->Initialize(seed, 0.15);  // far from uniform, so that a wrong KV entry changes tokens
  return std::move(weights).value();
}

}  // namespace tidepool::engine
