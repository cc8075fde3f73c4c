#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/device/cpu/cpu_device.h"
#include "core/device/torch_device.h"
#include "core/model/graph_rows.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

std::unique_ptr<Weights> Make(const ModelSpec& s, DType dtype, double std = 0.2) {
  auto w = Weights::Create(s, dtype);
  EXPECT_TRUE(w.ok()) << w.status().ToString();
  Randomize(**w, 7, std);
  return std::move(w).value();
}

device::Array Prefill(const Decoder& decoder, const ModelSpec& s, DType dtype, const BatchArrays& b) {
  const KvOnDevice memory(decoder.device(), s, dtype, static_cast<int64_t>(b.ids.size()));
  return decoder.Forward(b.view(), memory.view());
}
at::Tensor PrefillTensor(const Decoder& decoder, const ModelSpec& s, DType dtype, const BatchArrays& b) {
  return Tensor(decoder.device(), Prefill(decoder, s, dtype, b).view);
}
at::Tensor LogitsTensor(const Decoder& decoder, const device::View& hidden) {
  return Tensor(decoder.device(), decoder.Logits(hidden).view);
}

class DecoderFamilyTest : public testing::TestWithParam<std::string> {};

TEST_P(DecoderFamilyTest, AgreesWithPlainLoops) {
  const ModelSpec s = TinySpec(GetParam());
  const auto weights = Make(s, DType::kFloat32);
  const Decoder decoder(*weights, AnyDevice());
  Rng rng(1);
  const std::vector<std::vector<int32_t>> sequences = {
      RandomIds(rng, 19, s.vocab_size), RandomIds(rng, 1, s.vocab_size), RandomIds(rng, 7, s.vocab_size)};
  const BatchArrays b = PackWhole(sequences);
  const at::Tensor logits = LogitsTensor(decoder, Prefill(decoder, s, DType::kFloat32, b).view);
  int64_t row = 0;
  for (const auto& ids : sequences) {
    for (const Flat& want : ReferenceLogits(s, FlatOf(*weights), ids)) {
      const float* got = logits.const_data_ptr<float>() + row++ * s.vocab_size;
      for (int64_t v = 0; v < s.vocab_size; ++v)
        ASSERT_NEAR(got[v], want[static_cast<size_t>(v)], 2e-5) << "row " << row;
    }
  }
}

TEST_P(DecoderFamilyTest, BFloat16StaysCloseToItsOwnWeightsInDouble) {
  const ModelSpec s = TinySpec(GetParam());
  const auto weights = Make(s, DType::kBFloat16);
  const Decoder decoder(*weights, AnyDevice());
  Rng rng(2);
  const std::vector<int32_t> ids = RandomIds(rng, 23, s.vocab_size);
  const at::Tensor logits =
      LogitsTensor(decoder, Prefill(decoder, s, DType::kBFloat16, PackWhole({ids})).view).to(at::kFloat);
  const std::vector<Flat> want = ReferenceLogits(s, FlatOf(*weights), ids);
  double error = 0, size = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t v = 0; v < want[t].size(); ++v) {
      const double e = logits.const_data_ptr<float>()[t * want[t].size() + v] - want[t][v];
      error += e * e;
      size += want[t][v] * want[t][v];
    }
  }
  EXPECT_LT(std::sqrt(error / size), 0.02);  // bfloat16 has 8 bits; errors of ~10 roundings add up
}

// An adapter changes what the model computes as if its products were in the matrices. Beside it a decoder of
// the model alone computes what it did.
TEST_P(DecoderFamilyTest, AnAdapterIsAsItWereMerged) {
  const ModelSpec s = TinySpec(GetParam());
  Rng rng(1);
  const std::vector<int32_t> ids = RandomIds(rng, 19, s.vocab_size);
  const BatchArrays b = PackWhole({ids});
  const auto device = AnyDevice();
  for (const int64_t rank : {1, 3, 16}) {
    const auto weights = Adapted(Make(s, DType::kFloat32), 9, rank);
    const Decoder adapted(*weights, device), alone(*weights->base(), device);
    for (const auto& [decoder, spec, flat] :
         {std::tuple(&adapted, MergedSpec(*weights), Merged(*weights, FlatOf(*weights))),
          {&alone, s, FlatOf(*weights->base())}}) {
      const at::Tensor logits = LogitsTensor(*decoder, Prefill(*decoder, s, DType::kFloat32, b).view);
      const std::vector<Flat> want = ReferenceLogits(spec, flat, ids);
      for (size_t t = 0; t < ids.size(); ++t) {
        for (size_t v = 0; v < want[t].size(); ++v)
          ASSERT_NEAR(logits.const_data_ptr<float>()[t * want[t].size() + v], want[t][v], 4e-5)
              << "row " << t;
      }
    }
  }
}

// Rows of several adapters of unlike ranks, targets and scales, and of the model alone, in any order: each
// gets what a decoder of its weights alone gives.
TEST_P(DecoderFamilyTest, RowsOfSeveralAdaptersAreThoseOfEachAlone) {
  const ModelSpec s = TinySpec(GetParam());
  const auto device = AnyDevice();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::shared_ptr<const Weights> base = Make(s, dtype);
    std::vector<std::unique_ptr<Weights>> adapters;
    adapters.push_back(Adapted(base, 9, 8));
    adapters.push_back(Adapted(base, 10, 3, 1, {AdapterTarget::kQ, AdapterTarget::kV}));
    adapters.push_back(Adapted(base, 11, 5, 40, {AdapterTarget::kK, AdapterTarget::kO}));
    if (s.sparse_layers() > 0) adapters.push_back(Adapted(base, 12, 2, 7, {AdapterTarget::kExpertsDown}));
    // What a decoder was made with, too: the model, or an adapter beside which others are put.
    for (const Weights* own : {base.get(), static_cast<const Weights*>(adapters[2].get())}) {
      Decoder mixed(*own, device);
      std::map<int32_t, const Weights*> of{{kOwnWeights, own}};
      for (const auto& adapter : adapters) of[mixed.AddAdapter(*adapter)] = adapter.get();
      mixed.RemoveAdapter(1);
      of.erase(1);
      of[mixed.AddAdapter(*adapters[1])] = adapters[1].get();
      EXPECT_TRUE(of.contains(static_cast<int32_t>(adapters.size()))) << "a number was used again";
      Rng rng(4);
      for (int round = 0; round < 4; ++round) {
        std::vector<std::vector<int32_t>> sequences;
        std::vector<AdapterRows> rows;
        for (int i = 0; i < 6; ++i) {
          sequences.push_back(RandomIds(rng, rng.InRange(1, 20), s.vocab_size));
          const int32_t adapter = std::next(of.begin(), rng.Below(static_cast<int64_t>(of.size())))->first;
          rows.push_back({adapter, static_cast<int64_t>(sequences.back().size())});
        }
        const BatchArrays b = PackWhole(sequences);
        RaggedBatch batch = b.view();
        batch.adapters = rows;
        const KvOnDevice memory(*device, s, dtype, static_cast<int64_t>(b.ids.size()));
        const device::Array hidden = mixed.Forward(batch, memory.view());
        const at::Tensor got = Tensor(*device, hidden.view),
                         logits = Tensor(*device, mixed.Logits(hidden.view, rows).view);
        int64_t at = 0;
        for (size_t i = 0; i < sequences.size(); ++i) {
          const Decoder alone(*of.at(rows[i].adapter), device);
          const at::Tensor want = PrefillTensor(alone, s, dtype, PackWhole({sequences[i]})),
                           mine = got.slice(0, at, at + rows[i].rows);
          const at::Tensor of_head = LogitsTensor(alone, hidden.view.Rows(at, rows[i].rows));
          const at::Tensor my_head = logits.slice(0, at, at + rows[i].rows);
          at += rows[i].rows;
          if (device->batch_invariant(dtype)) {
            EXPECT_TRUE(my_head.equal(of_head)) << "sequence " << i << " of adapter " << rows[i].adapter;
            EXPECT_TRUE(mine.equal(want)) << "sequence " << i << " of adapter " << rows[i].adapter;
          } else {
            const at::Tensor x = mine.to(at::kFloat).contiguous(), y = want.to(at::kFloat).contiguous();
            double error = 0, size = 0;
            for (int64_t k = 0; k < y.numel(); ++k) {
              const double one = y.const_data_ptr<float>()[k], e = x.const_data_ptr<float>()[k] - one;
              error += e * e, size += one * one;
            }
            EXPECT_LT(std::sqrt(error / size), dtype == DType::kFloat32 ? 1e-5 : 0.02) << rows[i].adapter;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderFamilyTest,
                         testing::Values("llama", "llama_biased", "qwen2", "qwen3", "qwen2_moe",
                                         "qwen3_moe"));

struct Case {
  const char* name;
  ModelSpec spec;
  DType dtype;
};
ModelSpec Quickstart() {
  ModelSpec s;
  s.vocab_size = 53;
  s.hidden_size = 128, s.intermediate_size = 384, s.layers = 4;
  s.heads = 4, s.kv_heads = 2, s.head_size = 32, s.max_position = 256;
  s.tie_embeddings = true;
  return s;
}
ModelSpec SmolShapes(int64_t layers) {  // SmolLM2-135M with fewer layers, for time
  ModelSpec s;
  s.vocab_size = 49152;
  s.hidden_size = 576, s.intermediate_size = 1536, s.layers = layers;
  s.heads = 9, s.kv_heads = 3, s.head_size = 64, s.max_position = 8192, s.rope_theta = 100000;
  s.tie_embeddings = true;
  return s;
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.is_contiguous() &&
         b.is_contiguous() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(),
                     static_cast<size_t>(a.numel()) * a.element_size()) == 0;
}

// Decoding one token at a time, with the slots of a sequence scattered over blocks of 16 and other
// sequences in the batch, gives the bits of prefill and of training.
// The prompt is `blocks` whole blocks of 16 and 5 tokens long.
void ExpectOneForward(const ModelSpec& s, DType dtype, int32_t blocks = 1, bool adapter = false) {
  auto made = Make(s, dtype, 0.05);
  const auto weights = adapter ? Adapted(std::move(made), 9, 8) : std::move(made);
  const Decoder decoder(*weights, AnyDevice());
  Rng rng(3);
  const int32_t n = blocks * 16 + 5;
  const std::vector<int32_t> prompt = RandomIds(rng, n, s.vocab_size);
  std::vector<std::vector<int32_t>> responses;
  for (const int64_t n : {5, 18, 9}) responses.push_back(RandomIds(rng, n, s.vocab_size));

  const BatchArrays shared = PackShared(prompt, responses);
  auto [trained_rows, saved] = decoder.ForwardTraining(shared.view(), /*recompute=*/false);
  const at::Tensor trained = Tensor(decoder.device(), trained_rows.view),
                   trained_logits = LogitsTensor(decoder, trained_rows.view);
  {
    auto [again, other] = decoder.ForwardTraining(shared.view(), /*recompute=*/true);
    EXPECT_TRUE(SameBits(trained, Tensor(decoder.device(), again.view)));
  }

  // The engine's way: prompt once into block 2 and, from behind, those after 15; then single rows.
  const KvOnDevice memory(decoder.device(), s, dtype, (16 + blocks) * 16);
  std::vector<device::KvRun> prompt_runs;
  BatchArrays prefill;
  for (int32_t b = 0; b < blocks; ++b) {
    prompt_runs.push_back({(15 + blocks - b) * 16, 16});
    prefill.Add(prompt, static_cast<size_t>(b) * 16, static_cast<size_t>(b) * 16 + 16, 0,
                prompt_runs.back().start);
  }
  prompt_runs.push_back({2 * 16, 5});
  prefill.Add(prompt, static_cast<size_t>(n) - 5, static_cast<size_t>(n), 0, 2 * 16);
  prefill.runs = prompt_runs;
  {
    const device::Array hidden = decoder.Forward(prefill.view(), memory.view());
    EXPECT_TRUE(SameBits(Tensor(decoder.device(), hidden.view), trained.narrow(0, 0, n)));
    EXPECT_TRUE(
        SameBits(LogitsTensor(decoder, hidden.view.Rows(n - 1, 1)), trained_logits.narrow(0, n - 1, 1)));
  }

  std::vector<int64_t> first_row;
  int64_t at_row = n;
  for (const auto& r : responses) first_row.push_back(at_row), at_row += static_cast<int64_t>(r.size());
  for (size_t step = 0; step < 18; ++step) {
    BatchArrays decode;
    std::vector<int64_t> rows;
    for (size_t i = 0; i < responses.size(); ++i) {
      if (step >= responses[i].size()) continue;
      const auto run = static_cast<int32_t>(decode.runs.size());
      decode.runs.insert(decode.runs.end(), prompt_runs.begin(), prompt_runs.end());
      const int32_t block = static_cast<int32_t>(7 + 2 * i) * 16,
                    next = static_cast<int32_t>(6 + 5 * (i % 2) - i) * 16;
      decode.runs.push_back({block, 16});
      decode.runs.push_back({next, 16});
      std::vector<int32_t> all = prompt;
      all.insert(all.end(), responses[i].begin(), responses[i].end());
      const auto place = static_cast<int32_t>(step);
      decode.Add(all, static_cast<size_t>(n) + step, static_cast<size_t>(n) + step + 1, run,
                 place < 16 ? block + place : next + place - 16);
      rows.push_back(first_row[i] + place);
    }
    const device::Array rows_of = decoder.Forward(decode.view(), memory.view());
    const at::Tensor hidden = Tensor(decoder.device(), rows_of.view),
                     logits = LogitsTensor(decoder, rows_of.view);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(SameBits(hidden.narrow(0, static_cast<int64_t>(i), 1), trained.narrow(0, rows[i], 1)))
          << "step " << step << " row " << i;
      ASSERT_TRUE(
          SameBits(logits.narrow(0, static_cast<int64_t>(i), 1), trained_logits.narrow(0, rows[i], 1)))
          << "step " << step << " row " << i;
    }
  }
}

class OneForwardTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(OneForwardTest, PrefillDecodeAndTrainingAreBitEqual) {
  const auto [which, threads] = GetParam();
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  switch (which) {
    case 0:
      ExpectOneForward(Quickstart(), DType::kFloat32, /*blocks=*/9);
      break;
    case 1:
      ExpectOneForward(TinySpec("qwen3"), DType::kFloat32);
      break;
    case 2:
      ExpectOneForward(SmolShapes(2), DType::kBFloat16);
      break;
    case 3:
      ExpectOneForward(Quickstart(), DType::kBFloat16, /*blocks=*/9);
      break;
    case 4:
      ExpectOneForward(TinySpec("qwen2_moe"), DType::kFloat32);
      break;
    case 5:
      ExpectOneForward(TinySpec("qwen3_moe"), DType::kBFloat16);
      break;
    case 6:
      ExpectOneForward(Quickstart(), DType::kFloat32, /*blocks=*/9, /*adapter=*/true);
      break;
    case 7:
      ExpectOneForward(Quickstart(), DType::kBFloat16, /*blocks=*/9, /*adapter=*/true);
      break;
    case 8:
      ExpectOneForward(TinySpec("qwen3_moe"), DType::kBFloat16, /*blocks=*/1, /*adapter=*/true);
      break;
  }
  at::set_num_threads(before);
}
INSTANTIATE_TEST_SUITE_P(ShapesAndThreads, OneForwardTest,
                         testing::Combine(testing::Range(0, 9), testing::Values(1, 2)));

TEST(DecoderTest, TwoThreadsGiveTheBitsOfOne) {
  const ModelSpec s = Quickstart();
  const auto weights = Make(s, DType::kFloat32, 0.05);
  const Decoder decoder(*weights, AnyDevice());
  Rng rng(4);
  const BatchArrays b = PackWhole({RandomIds(rng, 40, s.vocab_size), RandomIds(rng, 37, s.vocab_size)});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = PrefillTensor(decoder, s, DType::kFloat32, b);
  at::set_num_threads(2);
  EXPECT_TRUE(SameBits(one, PrefillTensor(decoder, s, DType::kFloat32, b)));
  at::set_num_threads(before);
}

// A slot that generates and trains holds the weights twice, one that only generates once; and both multiply
// alike, also with an embedding in strips.
TEST_P(DecoderFamilyTest, OneCopyIsLaidOutForAllOrTheArenaItself) {
  ModelSpec s = TinySpec(GetParam());
  for (const auto& [vocab, tied] : {std::pair<int64_t, bool>{61, false}, {64, true}, {64, false}}) {
    s.vocab_size = vocab, s.tie_embeddings = tied;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << vocab << (tied ? " tied " : " ") << Name(dtype));
      const auto weights = Make(s, dtype), alone = Make(s, dtype);
      const auto device = std::make_shared<device::CpuDevice>();
      Rng rng(5);
      const BatchArrays b = PackWhole({RandomIds(rng, 11, vocab), RandomIds(rng, 3, vocab)});
      const auto logits = [&](const Decoder& decoder) {
        return LogitsTensor(decoder, Prefill(decoder, s, dtype, b).view);
      };
      const Decoder engine(*weights, device);
      const Decoder trainer(*weights, std::make_shared<device::CpuDevice>());
      EXPECT_EQ(weights->strips_bytes(), 0) << "there may be no weights yet";
      const at::Tensor want = logits(engine);
      EXPECT_TRUE(logits(trainer).equal(want));
      EXPECT_EQ(weights->strips_bytes(), weights->size()) << "once for both";

      const uint64_t digest = alone->Digest();
      alone->LayOutFor(*device);
      ASSERT_TRUE(alone->laid_out());
      EXPECT_EQ(alone->Digest(), digest);
      Decoder only(*alone, device);
      EXPECT_TRUE(logits(only).equal(want));
      EXPECT_EQ(alone->strips_bytes(), 0);

      // Other weights come into the arena, and nobody tells the decoders.
      Randomize(*weights, 8, 0.2);
      std::ranges::copy(std::as_const(*weights).bytes(), weights->Overwrite().begin());
      const at::Tensor next = logits(engine);
      EXPECT_FALSE(next.equal(want));
      EXPECT_TRUE(logits(trainer).equal(next));
      std::ranges::copy(std::as_const(*weights).bytes(), alone->Overwrite().begin());
      EXPECT_TRUE(logits(only).equal(next)) << "by a copy, until the arena is laid out";
      alone->LayOutFor(*device);
      only.WeightsChanged();
      EXPECT_TRUE(logits(only).equal(next));
      EXPECT_EQ(alone->strips_bytes(), 0);
    }
  }
}

// A device that takes matrices as they are does not read strips as rows.
TEST(DecoderDeathTest, AnotherDeviceDoesNotReadALaidOutArena) {
  const auto weights = Make(TinySpec(), DType::kFloat32);
  const auto cpu = std::make_shared<device::CpuDevice>();
  weights->LayOutFor(*cpu);
  EXPECT_DEATH((void)weights->bytes(), "laid out");
  EXPECT_DEATH(
      {
        const Decoder other(*weights, std::make_shared<device::TorchDevice>(c10::Device(c10::kCPU)));
        Prefill(other, TinySpec(), DType::kFloat32, PackWhole({{1, 2, 3}}));
      },
      "strips");
}

// One sequence in the slots from 0 on, a token a step, on a device with graphs.
struct OneSequence {
  static constexpr int32_t kSlots = 16;
  const ModelSpec spec = TinySpec();
  const std::unique_ptr<Weights> weights = Make(spec, DType::kFloat32);
  const std::shared_ptr<device::Device> device = device::DeviceWithGraphs();
  const Decoder decoder{*weights, device};

  [[nodiscard]] KvOnDevice Memory() const { return {*device, spec, DType::kFloat32, kSlots + kFillRowsMax}; }
  // cut: into runs of one slot.
  [[nodiscard]] at::Tensor Step(const KvOnDevice& memory, int32_t id, int32_t position, bool graph,
                                bool cut = false) const {
    const std::vector<int32_t> ids = {id}, positions = {position}, lengths = {position + 1}, first = {0};
    std::vector<device::KvRun> runs = {{.start = 0, .count = cut ? 1 : position + 1}};
    for (int32_t slot = 1; cut && slot <= position; ++slot) runs.push_back({.start = slot, .count = 1});
    const device::Array hidden = decoder.Forward({.ids = ids,
                                                  .positions = positions,
                                                  .slots = positions,
                                                  .first_run = first,
                                                  .lengths = lengths,
                                                  .runs = runs,
                                                  .fill_slot = graph ? kSlots : -1},
                                                 memory.view());
    return Tensor(*device, hidden.view);
  }
};

// A graph points to the memory that it was recorded with.
TEST(DecoderGraphTest, AnotherKvMemoryIsReadAndWrittenByTheNextStep) {
  const OneSequence one;
  const KvOnDevice plain = one.Memory(), first = one.Memory(), second = one.Memory();
  for (const int32_t position : {0, 1}) (void)one.Step(plain, 7 + position, position, false);
  const at::Tensor want = one.Step(plain, 11, 2, false);
  EXPECT_EQ(one.decoder.recorded_graphs(), 0);

  for (const int32_t position : {0, 1}) (void)one.Step(second, 7 + position, position, true);
  (void)one.Step(first, 5, 0, true);  // of another sequence
  EXPECT_TRUE(SameBits(want, one.Step(second, 11, 2, true)));
  EXPECT_GT(one.decoder.recorded_graphs(), 0);
}

TEST(DecoderGraphTest, RunsForWhichThereIsNoRoomAreRecordedAnew) {
  const OneSequence one;
  const KvOnDevice plain = one.Memory(), memory = one.Memory();
  for (int32_t position = 0; position < 8; ++position) {
    const at::Tensor want = one.Step(plain, 7 + position, position, false);
    const int64_t before = one.decoder.recorded_graphs();
    const bool cut = position == 7;
    EXPECT_TRUE(SameBits(want, one.Step(memory, 7 + position, position, true, cut))) << position;
    if (cut) {
      EXPECT_EQ(one.decoder.recorded_graphs(), before + 1);
    }
  }
}

TEST(DecoderTest, NewWeightsInTheArenaAreSeen) {
  const ModelSpec s = TinySpec();
  const auto weights = Make(s, DType::kFloat32);
  Decoder decoder(*weights, AnyDevice());
  Rng rng(5);
  const BatchArrays b = PackWhole({RandomIds(rng, 5, s.vocab_size)});
  const at::Tensor before = PrefillTensor(decoder, s, DType::kFloat32, b);
  weights->Initialize(99, 0.2);
  decoder.WeightsChanged();
  EXPECT_FALSE(SameBits(before, PrefillTensor(decoder, s, DType::kFloat32, b)));
}

}  // namespace
}  // namespace tidepool::model
