#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device/cpu/cpu_device.h"
#include "core/model/adapter_files.h"
#include "core/model/decoder.h"
#include "core/model/gguf_folder.h"
#include "core/model/gguf_import.h"
#include "core/model/row_operations.h"
#include "tests/core/files/gguf_builder.h"
#include "tests/core/files/test_folder.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

// L = sum over rows of weight_r * log p(target_r), with its gradient by the product's backward.
struct Loss {
  std::vector<int32_t> targets;
  std::vector<float> weights;
};

double Differentiate(const Decoder& decoder, const BatchArrays& b, const Loss& loss, bool recompute,
                     Gradients& grads) {
  auto [hidden, saved] = decoder.ForwardTraining(b.view(), recompute);
  device::Device& device = decoder.device();
  const device::Array logits = decoder.Logits(hidden.view);
  std::vector<float> lp(loss.targets.size()), lse(loss.targets.size());
  TokenLogProbs(device, logits.view, loss.targets, 1.0F, lp, {}, lse);
  double value = 0;
  for (size_t i = 0; i < lp.size(); ++i) value += double{loss.weights[i]} * lp[i];
  TokenLogProbsBackward(device, logits.view, loss.targets, 1.0F, lse, {}, loss.weights, {});
  const device::Array dhidden = decoder.LogitsBackward(hidden.view, logits.view, grads);
  decoder.Backward(std::move(saved), dhidden.view, grads);
  return value;
}

Loss RandomLoss(Rng& rng, size_t rows, int64_t vocab) {
  Loss loss;
  for (size_t i = 0; i < rows; ++i) {
    loss.targets.push_back(static_cast<int32_t>(rng.Below(vocab)));
    loss.weights.push_back(static_cast<float>(rng.Normal()));
  }
  return loss;
}

class BackwardTest : public testing::TestWithParam<std::string> {};

// Central differences of the reference decoder in double, in 6 places of every parameter.
TEST_P(BackwardTest, EqualsFiniteDifferences) {
  const ModelSpec s = TinySpec(GetParam());
  auto w = std::move(Weights::Create(s, DType::kFloat32)).value();
  Randomize(*w, 11, 0.2);
  const Decoder decoder(*w, AnyDevice());
  Rng rng(12);
  const std::vector<std::vector<int32_t>> sequences = {RandomIds(rng, 6, s.vocab_size),
                                                       RandomIds(rng, 4, s.vocab_size)};
  const BatchArrays b = PackWhole(sequences);
  const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
  Gradients grads(*w, decoder.device());
  Differentiate(decoder, b, loss, false, grads);

  const std::vector<float> gradient = ValuesOf(decoder.device(), *w, grads);
  Flat flat = FlatOf(*w);
  const auto value = [&] {
    double sum = 0;
    size_t row = 0;
    for (const auto& ids : sequences) {
      for (const Flat& logits : ReferenceLogits(s, flat, ids)) {
        sum += loss.weights[row] * ReferenceLogProb(logits, loss.targets[row]);
        ++row;
      }
    }
    return sum;
  };
  for (const Parameter& p : w->layout()) {
    for (int i = 0; i < 6; ++i) {
      int64_t k = p.offset + rng.Below(p.numel());
      if (p.name == "embedding") {  // a row that the batch reads
        k = p.offset + sequences[0][static_cast<size_t>(i % 6)] * s.hidden_size + rng.Below(s.hidden_size);
      }
      double& x = flat[static_cast<size_t>(k)];
      const double before = x, h = 1e-4;
      x = before + h;
      const double up = value();
      x = before - h;
      const double down = value();
      x = before;
      const double want = (up - down) / (2 * h), got = gradient[static_cast<size_t>(k)];
      EXPECT_NEAR(got, want, 2e-4 * (1 + std::fabs(want))) << p.name << " element " << k - p.offset;
    }
  }
}
// A frozen model stands in strips alone, which forward and backward read with the same bits.
TEST_P(BackwardTest, OfAnAdapterHasTheSameBitsOnALaidOutModel) {
  const ModelSpec s = TinySpec(GetParam());
  const auto device = std::make_shared<device::CpuDevice>();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::vector<float>> gradients;
    for (const bool laid_out : {false, true}) {
      auto base = std::move(Weights::Create(s, dtype)).value();
      Randomize(*base, 11, 0.2);
      if (laid_out) base->LayOutFor(*device);
      ASSERT_EQ(base->laid_out(), laid_out);
      const std::unique_ptr<Weights> w = Adapted(std::move(base), 13);
      const Decoder decoder(*w, device);
      Rng rng(12);
      const BatchArrays b = PackWhole({RandomIds(rng, 6, s.vocab_size), RandomIds(rng, 4, s.vocab_size)});
      const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
      Gradients grads(*w, decoder.device());
      Differentiate(decoder, b, loss, /*recompute=*/true, grads);
      gradients.push_back(ValuesOf(decoder.device(), *w, grads));
    }
    EXPECT_EQ(gradients[0], gradients[1]) << Name(dtype);
  }
}

// A llama model of two blocks, whose matrices are in blocks of 8 and 4 bits: in one layer q, k and v have
// several types, so that they stand as numbers.
std::string GgufModel(uint64_t seed) {
  constexpr uint64_t kHidden = 64, kInner = 96, kVocab = 48;
  constexpr uint32_t kQ40 = 2, kQ41 = 3, kQ80 = 8;
  files::GgufBuilder b;
  b.String("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair("block_count", 2U),
                                   {"context_length", 64U},
                                   {"embedding_length", static_cast<uint32_t>(kHidden)},
                                   {"feed_forward_length", static_cast<uint32_t>(kInner)},
                                   {"attention.head_count", 4U},
                                   {"attention.head_count_kv", 2U}})
    b.Uint32(std::string("llama.") + key, value);
  b.Float("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  b.String("tokenizer.ggml.model", "gpt2");
  b.String("tokenizer.ggml.pre", "gpt-2");
  std::vector<std::string> tokens;
  for (uint64_t i = 0; i < kVocab; ++i) tokens.push_back(std::string(1, static_cast<char>('0' + i)));
  tokens.back() = "01";
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Int32s("tokenizer.ggml.token_type", std::vector<int32_t>(kVocab, 1));
  b.Strings("tokenizer.ggml.merges", {"0 1"});
  Rng rng(seed);
  const auto matrix = [&](const std::string& name, uint64_t k, uint64_t n, uint32_t type) {
    const size_t scales = type == kQ41 ? 4 : 2, each = scales + (type == kQ80 ? 32 : 16);
    std::string bytes(n * k / 32 * each, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
      // High bytes of halves about 2^-6, or, of 8 bits, 2^-10.
      const bool high = i % each < scales && i % 2 == 1;
      bytes[i] = static_cast<char>(high ? (rng.Chance(0.5) ? 0x80 : 0) + (type == kQ80 ? 0x14 : 0x24)
                                        : rng.Below(256));
    }
    b.Tensor(name, {k, n}, type, bytes);
  };
  const auto norm = [&](const std::string& name) {
    b.Tensor(name, {kHidden}, 0, files::Floats(std::vector<float>(kHidden, 1.0F)));
  };
  matrix("token_embd.weight", kHidden, kVocab, kQ80);
  for (const std::string at : {"blk.0.", "blk.1."}) {
    norm(at + "attn_norm.weight");
    matrix(at + "attn_q.weight", kHidden, kHidden, kQ41);
    matrix(at + "attn_k.weight", kHidden, kHidden / 2, kQ41);
    matrix(at + "attn_v.weight", kHidden, kHidden / 2, at == "blk.0." ? kQ41 : kQ80);
    matrix(at + "attn_output.weight", kHidden, kHidden, kQ40);
    norm(at + "ffn_norm.weight");
    matrix(at + "ffn_gate.weight", kHidden, kInner, kQ41);
    matrix(at + "ffn_up.weight", kHidden, kInner, kQ41);
    matrix(at + "ffn_down.weight", kInner, kHidden, kQ80);
  }
  norm("output_norm.weight");
  return b.Build();
}

// A model in blocks computes what the folder of numbers does that is imported from the same file.
TEST(BlocksTest, AnAdapterHasTheBitsOfTheImportedModel) {
  const TestFolder folder;
  const std::string file = folder.Write("m.gguf", GgufModel(5)), blocks = folder.path() + "/blocks";
  ASSERT_EQ(ImportGgufBlocks(file, blocks), OkStatus());
  const GgufFolder gguf = std::move(GgufFolder::Open(blocks)).value();
  const auto device = std::make_shared<device::CpuDevice>();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(Name(dtype));
    const std::string numbers = folder.path() + "/" + Name(dtype);
    ASSERT_EQ(ImportGguf(file, numbers, dtype), OkStatus());
    EXPECT_EQ(Fingerprint(blocks).value(), Fingerprint(numbers).value());
    const BlockLayout layout = LayoutInBlocks(gguf.spec(), dtype, gguf.BlockTypes());
    EXPECT_EQ(std::ranges::count(layout.types, device::BlockType::kNone), 6)
        << "five norms, and a qkv of several types";
    std::vector<std::vector<float>> gradients;
    for (const bool in_blocks : {false, true}) {
      std::shared_ptr<const Weights> base;
      if (in_blocks)
        base = std::move(Weights::CreateInBlocks(
                             gguf.spec(), dtype, layout, {},
                             [&](std::span<std::byte> arena) { return gguf.Read(dtype, layout, arena); }))
                   .value();
      else
        base = std::move(LoadHuggingFace(numbers, dtype)).value();
      const std::unique_ptr<Weights> w = Adapted(std::move(base), 13);
      const Decoder decoder(*w, device);
      Rng rng(12);
      const BatchArrays b = PackWhole({RandomIds(rng, 40, 48), RandomIds(rng, 4, 48)});
      const Loss loss = RandomLoss(rng, b.ids.size(), 48);
      Gradients grads(*w, decoder.device());
      const double value = Differentiate(decoder, b, loss, /*recompute=*/true, grads);
      EXPECT_TRUE(std::isfinite(value));
      gradients.push_back(ValuesOf(decoder.device(), *w, grads));
      gradients.back().push_back(static_cast<float>(value));
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  }
}

// The same of an adapter: of its parameters alone, and the model below it stays as it is.
void ExpectAdapterGradients(const ModelSpec& s, const std::vector<AdapterTarget>& targets = {}) {
  auto base = std::move(Weights::Create(s, DType::kFloat32)).value();
  Randomize(*base, 11, 0.2);
  const uint64_t digest = base->Digest();
  const std::unique_ptr<Weights> w = Adapted(std::move(base), 13, /*rank=*/3, /*alpha=*/5, targets);
  const Decoder decoder(*w, AnyDevice());
  Rng rng(12);
  const std::vector<std::vector<int32_t>> sequences = {RandomIds(rng, 6, s.vocab_size),
                                                       RandomIds(rng, 4, s.vocab_size)};
  const BatchArrays b = PackWhole(sequences);
  const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
  for (const bool recompute : {false, true}) {
    Gradients grads(*w, decoder.device());
    Differentiate(decoder, b, loss, recompute, grads);
    const std::vector<float> gradient = ValuesOf(decoder.device(), *w, grads);
    Flat flat = FlatOf(*w);
    const auto value = [&] {
      const Flat merged = Merged(*w, flat);
      double sum = 0;
      size_t row = 0;
      for (const auto& ids : sequences) {
        for (const Flat& logits : ReferenceLogits(MergedSpec(*w), merged, ids)) {
          sum += loss.weights[row] * ReferenceLogProb(logits, loss.targets[row]);
          ++row;
        }
      }
      return sum;
    };
    for (const Parameter& p : w->layout()) {
      for (int i = 0; i < 3; ++i) {
        int64_t k = p.offset + rng.Below(p.numel());
        if (p.name == "embedding.a")  // a row that the batch reads
          k = p.offset + sequences[0][static_cast<size_t>(i)] * p.shape[1] + rng.Below(p.shape[1]);
        double& x = flat[static_cast<size_t>(k)];
        const double before = x, h = 1e-4;
        x = before + h;
        const double up = value();
        x = before - h;
        const double down = value();
        x = before;
        const double want = (up - down) / (2 * h), got = gradient[static_cast<size_t>(k)];
        EXPECT_NEAR(got, want, 2e-4 * (1 + std::fabs(want))) << p.name << " element " << k - p.offset;
      }
    }
  }
  EXPECT_EQ(w->base()->Digest(), digest);
}
TEST_P(BackwardTest, OfAnAdapterEqualsFiniteDifferences) { ExpectAdapterGradients(TinySpec(GetParam())); }
// Backwards that end early, or have no block to add to.
TEST(BackwardOfAdapterTest, OfSomeTargetsEqualsFiniteDifferences) {
  using enum AdapterTarget;
  for (const auto& targets : {std::vector{kHead}, {kEmbedding}, {kEmbedding, kHead}, {kQ}, {kDown, kHead}})
    for (const char* family : {"llama", "qwen3"}) ExpectAdapterGradients(TinySpec(family), targets);
  for (const auto& targets : {std::vector{kExpertsGateUp}, {kExpertsDown}, {kExpertsGateUp, kExpertsDown}})
    for (const char* family : {"qwen2_moe", "qwen3_moe"}) ExpectAdapterGradients(TinySpec(family), targets);
}
INSTANTIATE_TEST_SUITE_P(Families, BackwardTest,
                         testing::Values("llama", "llama_biased", "qwen2", "qwen3", "qwen2_moe",
                                         "qwen3_moe"));

// Copies gradients when they are said to be final, and then spoils what they were in.
class CopyWhenFinal final : public GradientKeeper {
 public:
  CopyWhenFinal(device::Device& device, int64_t elements, std::vector<float>& copy)
      : device_(device), elements_(elements), copy_(copy), memory_(device.Need(elements * 4)) {}
  float* At(int64_t offset) override {
    EXPECT_LT(offset, final_from_) << "it was said to be final";
    return static_cast<float*>(memory_->data()) + offset;
  }
  void Final(int64_t from, int64_t to) override {
    EXPECT_EQ(to, final_from_ == elements_ + 1 ? elements_ : final_from_);
    final_from_ = from;
    const std::vector<float> values = device_.Read(static_cast<float*>(memory_->data()) + from, to - from);
    copy_.insert(copy_.begin(), values.begin(), values.end());
    const std::vector<float> spoiled(values.size(), NAN);
    device_.Upload(static_cast<float*>(memory_->data()) + from, std::span<const float>(spoiled));
  }
  void Release() override {}
  [[nodiscard]] int64_t held_bytes() const override { return memory_->bytes(); }

 private:
  device::Device& device_;
  const int64_t elements_;
  std::vector<float>& copy_;  // of elements from final_from_ on
  std::shared_ptr<device::Buffer> memory_;
  int64_t final_from_ = elements_ + 1;
};

TEST_P(BackwardTest, SaysWhenGradientsAreFinal) {
  const ModelSpec s = TinySpec(GetParam());
  auto w = std::move(Weights::Create(s, DType::kFloat32)).value();
  Randomize(*w, 11, 0.2);
  const Decoder decoder(*w, AnyDevice());
  Rng rng(12);
  const BatchArrays b = PackWhole({RandomIds(rng, 6, s.vocab_size), RandomIds(rng, 4, s.vocab_size)});
  const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
  Gradients whole(*w, decoder.device());
  Differentiate(decoder, b, loss, false, whole);
  std::vector<float> copy;
  Gradients kept(*w, decoder.device(),
                 std::make_unique<CopyWhenFinal>(decoder.device(), w->elements(), copy));
  Differentiate(decoder, b, loss, false, kept);
  EXPECT_EQ(copy, ValuesOf(decoder.device(), *w, whole));
}

TEST(RecomputeTest, GivesTheBitsOfSavingEverything) {
  for (const std::string family : {"llama", "llama_biased", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const ModelSpec s = TinySpec(family);
      auto w = std::move(Weights::Create(s, dtype)).value();
      Randomize(*w, 13, 0.2);
      const Decoder decoder(*w, AnyDevice());
      Rng rng(14);
      const BatchArrays b = PackWhole({RandomIds(rng, 33, s.vocab_size), RandomIds(rng, 20, s.vocab_size)});
      const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
      Gradients saved(*w, decoder.device()), recomputed(*w, decoder.device());
      Differentiate(decoder, b, loss, false, saved);
      Differentiate(decoder, b, loss, true, recomputed);
      EXPECT_EQ(ValuesOf(decoder.device(), *w, saved), ValuesOf(decoder.device(), *w, recomputed)) << family;
    }
  }
}

// The rows of a prompt stand once: its gradient is the sum over its continuations.
TEST(SharedPromptTest, GradientIsThatOfSeparateSequences) {
  for (const std::string family : {"llama", "qwen3"}) {
    const ModelSpec s = TinySpec(family);
    auto w = std::move(Weights::Create(s, DType::kFloat32)).value();
    Randomize(*w, 15, 0.2);
    const Decoder decoder(*w, AnyDevice());
    Rng rng(16);
    const std::vector<int32_t> prompt = RandomIds(rng, 9, s.vocab_size);
    std::vector<std::vector<int32_t>> responses, whole;
    for (const int64_t n : {4, 1, 7}) {
      responses.push_back(RandomIds(rng, n, s.vocab_size));
      whole.push_back(prompt);
      whole.back().insert(whole.back().end(), responses.back().begin(), responses.back().end());
    }
    const BatchArrays shared = PackShared(prompt, responses), separate = PackWhole(whole);
    // The loss looks at response rows, and once at the prompt's last row.
    Loss a = RandomLoss(rng, shared.ids.size(), s.vocab_size);
    for (size_t i = 0; i < 8; ++i) a.weights[i] = 0;
    Loss b;
    size_t from = 9;
    for (size_t i = 0; i < responses.size(); ++i) {
      for (size_t t = 0; t < whole[i].size(); ++t) {
        const bool last_of_prompt = t == 8 && i == 0;
        const size_t row = t < 9 ? 8 : from++;
        b.targets.push_back(a.targets[row]);
        b.weights.push_back(t >= 9 || last_of_prompt ? a.weights[row] : 0.0F);
      }
    }
    Gradients ga(*w, decoder.device()), gb(*w, decoder.device());
    EXPECT_NEAR(Differentiate(decoder, shared, a, false, ga), Differentiate(decoder, separate, b, false, gb),
                1e-4);
    double difference = 0, size = 0;
    const std::vector<float> va = ValuesOf(decoder.device(), *w, ga), vb = ValuesOf(decoder.device(), *w, gb);
    for (size_t i = 0; i < va.size(); ++i) {
      difference = std::max(difference, std::fabs(double{va[i]} - vb[i]));
      size = std::max(size, std::fabs(double{vb[i]}));
    }
    EXPECT_LT(difference, 1e-5 * size);
    EXPECT_GT(size, 0.01);
  }
}

// Weight gradients of bfloat16 rows, in one call and in eight, against float64. AMD processors with bfloat16
// instructions round the product of each call.
TEST(NarrowBackwardTest, WeightGradientsAddUpInFloat32OverMicroBatches) {
  const ModelSpec s = TinySpec();
  auto w = std::move(Weights::Create(s, DType::kBFloat16)).value();
  Randomize(*w, 19, 0.2);
  const Decoder decoder(*w, AnyDevice());
  const auto narrow = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor hidden = at::randn({64, s.hidden_size}, narrow),
                   dlogits = at::randn({64, s.vocab_size}, narrow);
  const at::Tensor want = at::mm(dlogits.to(at::kDouble).t(), hidden.to(at::kDouble));
  bool rounds = false;
#if defined(__x86_64__)
  rounds = !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bf16");
#endif
  for (const int64_t rows : {64, 8}) {
    device::Device& device = decoder.device();
    Gradients grads(*w, device);
    for (int64_t r = 0; r < 64; r += rows)
      (void)decoder.LogitsBackward(ToDevice(device, hidden.narrow(0, r, rows)).view,
                                   ToDevice(device, dlogits.narrow(0, r, rows)).view, grads);
    const at::Tensor got =  // the tied embedding
        Tensor(device, {grads.data(), s.vocab_size, s.hidden_size, DType::kFloat32}).to(at::kDouble);
    const double error = got.sub(want).norm().item<double>() / want.norm().item<double>();
    EXPECT_LT(error, rounds ? 5e-3 : 1e-6) << rows;
  }
}

TEST(NarrowBackwardTest, BFloat16GradientPointsWhereFloat32Does) {
  const ModelSpec s = TinySpec();
  auto narrow = std::move(Weights::Create(s, DType::kBFloat16)).value();
  Randomize(*narrow, 17, 0.2);
  auto wide = std::move(Weights::Create(s, DType::kFloat32)).value();
  for (size_t i = 0; i < wide->layout().size(); ++i) {
    wide->Get(static_cast<int64_t>(i)).copy_(narrow->Get(static_cast<int64_t>(i)));
  }
  Rng rng(18);
  const BatchArrays b = PackWhole({RandomIds(rng, 30, s.vocab_size)});
  const Loss loss = RandomLoss(rng, b.ids.size(), s.vocab_size);
  const auto device = AnyDevice();
  Gradients gn(*narrow, *device), gw(*wide, *device);
  Differentiate(Decoder(*narrow, device), b, loss, false, gn);
  Differentiate(Decoder(*wide, device), b, loss, false, gw);
  double dot = 0, nn = 0, ww = 0;
  const std::vector<float> vn = ValuesOf(*device, *narrow, gn), vw = ValuesOf(*device, *wide, gw);
  for (size_t i = 0; i < vn.size(); ++i) {
    dot += double{vn[i]} * vw[i];
    nn += double{vn[i]} * vn[i];
    ww += double{vw[i]} * vw[i];
  }
  EXPECT_GT(dot / std::sqrt(nn * ww), 0.999);
  EXPECT_NEAR(std::sqrt(nn / ww), 1.0, 0.02);
}

}  // namespace
}  // namespace tidepool::model
