// Decoding as a GPU does it for models of today: bfloat16, heads of 64, steps that are recorded. There norm,
// products and gate are one kernel, products behind each other a chain, and attention turns its queries
// itself. On emulated kernels, against a forward on the CPU over what was drawn.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/device_code.h"
#include "core/cuda/kernels/launch.h"
#include "core/cuda/kernels/product_chain.h"
#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine.h"
#include "core/model/decoder.h"
#include "core/model/row_operations.h"
#include "tests/core/cuda/emulated_device.h"
#include "tests/core/engine/reference_generator.h"
#include "tests/core/fuzz_seeds.h"
#include "tests/core/model/reference.h"

namespace tidepool::engine {
namespace {

using device::BF16;

// What a recorded step took of the kernels that are several at once.
class CountingCuda : public cuda::EmulatedCudaDevice {
 public:
  using EmulatedCudaDevice::FusedMultiply;
  using EmulatedCudaDevice::RotaryAttention;
  void FusedMultiply(const device::FusedMultiplyArgs<BF16>& a) override {
    if (cuda::emulation::Recording() != nullptr && cuda::TakesInChain(a)) {
      ++chained;
      gated += a.glu.rows > 0 ? 1 : 0;
    }
    EmulatedCudaDevice::FusedMultiply(a);
  }
  void RotaryAttention(const device::RotaryArgs<BF16>& turn, const device::AttentionArgs<BF16>& a) override {
    if (cuda::emulation::Recording() != nullptr && cuda::RotatesInAttention(turn, a)) ++turned;
    EmulatedCudaDevice::RotaryAttention(turn, a);
  }
  int64_t chained = 0, gated = 0, turned = 0;
};

std::unique_ptr<model::Weights> Model(uint64_t seed) {
  model::ModelSpec spec = TinyModel(model::DType::kBFloat16, seed)->spec();
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 64;
  spec.vocab_size = 96;
  spec.qk_norm = seed % 2 == 1;
  spec.eos_token_ids.clear();
  auto weights = model::Weights::Create(spec, model::DType::kBFloat16);
  TP_CHECK(weights.ok()) << weights.status().ToString();
  (*weights)->Initialize(seed, 0.1);
  return std::move(weights).value();
}

// Log-probabilities on the CPU of `ids` behind `prompt`.
std::vector<float> OnTheCpu(const model::Weights& weights, const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& ids) {
  const model::Decoder decoder(weights, std::make_shared<device::CpuDevice>());
  device::Device& device = decoder.device();
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), ids.begin(), ids.end() - 1);
  const auto n = static_cast<int32_t>(tokens.size());
  const model::KvOnDevice memory(device, weights.spec(), weights.dtype(), n);
  std::vector<int32_t> place(tokens.size()), lengths(tokens.size());
  std::iota(place.begin(), place.end(), 0);
  std::iota(lengths.begin(), lengths.end(), 1);
  const std::vector<int32_t> first_run(tokens.size(), 0);
  const std::vector<device::KvRun> runs = {{.start = 0, .count = n}};
  const device::Array hidden = decoder.Forward({.ids = tokens,
                                                .positions = place,
                                                .slots = place,
                                                .first_run = first_run,
                                                .lengths = lengths,
                                                .runs = runs},
                                               memory.view());
  const auto count = static_cast<int64_t>(ids.size());
  const device::Array logits = decoder.Logits(hidden.view.Rows(n - count, count));
  std::vector<float> logprobs(ids.size());
  decoder.TokenLogProbs(logits.view, ids, 1.0F, logprobs);
  return logprobs;
}

void Decode(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  at::set_num_threads(1);
  const auto weights = Model(seed);
  const auto device = std::make_shared<CountingCuda>();
  auto engine = Engine::Create(*weights, {.seed = seed,
                                          .device = device,
                                          .block_tokens = 4,
                                          .kv_cache_tokens = 2048,
                                          .graphs = true,
                                          .version = {0, 1}});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  std::map<SampleId, std::vector<int32_t>> prompts;
  std::map<SampleId, Record> records;
  for (int32_t k = 0; k < 3; ++k) {
    std::vector<int32_t> prompt(static_cast<size_t>(20 + 13 * k));
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<int32_t>((static_cast<size_t>(k) + 7 * i + seed) % 90);
    const SampleId tid = {k, 0, 0};
    prompts[tid] = prompt;
    ASSERT_TRUE((*engine)
                    ->Add({.tid = tid,
                           .gid = GroupId{k},
                           .prompt = std::move(prompt),
                           .max_new_tokens = 8 + 2 * k,
                           .max_total_new = 8 + 2 * k})
                    .ok());
  }
  int64_t recorded = 0;
  while ((*engine)->HasWork()) {
    const StepOutput out = (*engine)->Step();
    recorded += out.stats.recorded_graphs;
    for (const Delta& d : out.deltas) {
      ASSERT_NE(d.finish, FinishReason::kError) << d.error;
      Record& r = records[d.tid];
      r.ids.insert(r.ids.end(), d.ids.begin(), d.ids.end());
      r.logprobs.insert(r.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    }
  }
  EXPECT_GE(recorded, 3);  // of 4, 2 and 1 rows
  // Each layer's, in every recording; products with a norm before them and the gate behind them in one.
  const int64_t layers = weights->spec().layers;
  EXPECT_EQ(device->turned, recorded * layers);
  EXPECT_EQ(device->gated, recorded * layers);
  EXPECT_GE(device->chained, 2 * recorded * layers);
  double worst = 0, mean = 0;
  int64_t tokens = 0;
  ASSERT_EQ(records.size(), prompts.size());
  for (const auto& [tid, got] : records) {
    const std::vector<float> want = OnTheCpu(*weights, prompts.at(tid), got.ids);
    for (size_t i = 0; i < want.size(); ++i, ++tokens) {
      const double gap = std::abs(static_cast<double>(got.logprobs[i]) - want[i]);
      worst = std::max(worst, gap);
      mean += gap;
    }
  }
  mean /= static_cast<double>(tokens);
  testing::Test::RecordProperty("worst", std::to_string(worst));
  EXPECT_LE(worst, 0.05) << "mean " << mean;
  EXPECT_LE(mean, 0.01);
}

TEST(EngineFusedTest, WhatARecordedStepDrawsHasTheLogProbabilitiesThatTheCpuGives) {
  for (int64_t seed = 0; seed < FuzzSeeds(2); ++seed) Decode(static_cast<uint64_t>(seed));
}

}  // namespace
}  // namespace tidepool::engine
