#include "core/model/hugging_face.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/files/safetensors.h"
#include "core/model/weights.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

namespace fs = std::filesystem;

class HuggingFaceTest : public testing::Test {
 protected:
  HuggingFaceTest() {
    root_ = fs::temp_directory_path() / ("tidepool_hf_" + std::to_string(::getpid()) + "_" +
                                         testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_);
  }
  ~HuggingFaceTest() override { fs::remove_all(root_); }
  std::string Folder(const std::string& name) {
    fs::create_directories(root_ / name);
    return (root_ / name).string();
  }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string Read(const std::string& path) {
    std::stringstream s;
    s << std::ifstream(path).rdbuf();
    return s.str();
  }
  StatusOr<ModelSpec> SpecOf(const std::string& config, const std::string& generation = "") {
    const std::string folder = Folder("spec");
    Write(folder + "/config.json", config);
    if (!generation.empty()) Write(folder + "/generation_config.json", generation);
    return ReadSpec(folder);
  }
  fs::path root_;
};

TEST_F(HuggingFaceTest, UntrainedModelsComeBackByteForByte) {
  for (const std::string family :
       {"llama", "llama_biased", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      ModelSpec spec = TinySpec(family);
      spec.eos_token_ids = {5, 9};
      spec.bos_token_id = 1;
      spec.rope_theta = 12345.5;
      auto w = std::move(Weights::Create(spec, dtype)).value();
      Randomize(*w, 3, 0.1);
      const std::string a = Folder(family + "_a"), b = Folder(family + "_b");
      ASSERT_EQ(SaveHuggingFace(*w, a), OkStatus());
      auto loaded = LoadHuggingFace(a, dtype);
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      EXPECT_EQ((*loaded)->Digest(), w->Digest());
      const ModelSpec& got = (*loaded)->spec();
      EXPECT_EQ(got.eos_token_ids, spec.eos_token_ids);
      EXPECT_EQ(got.bos_token_id, 1);
      EXPECT_EQ(got.rope_theta, spec.rope_theta);
      EXPECT_EQ(got.head_size, 24);
      EXPECT_EQ(got.qkv_bias, spec.qkv_bias);
      EXPECT_EQ(got.tie_embeddings, spec.tie_embeddings);
      ASSERT_EQ(SaveHuggingFace(**loaded, b), OkStatus());
      for (const char* file : {"model.safetensors", "config.json", "generation_config.json"}) {
        EXPECT_EQ(Read(a + "/" + file), Read(b + "/" + file)) << file;
      }
      EXPECT_EQ(CheckHuggingFace(a), OkStatus());
    }
  }
}

// float16 and mixed types, tensors that nobody needs, keys that we do not know: an untrained model keeps them
// all, whatever type it was computed in. A trained tensor is written in that type; the others stay as they
// are.
TEST_F(HuggingFaceTest, WhatWasNotTrainedIsWrittenAsItWasRead) {
  auto w = std::move(Weights::Create(TinySpec("qwen3_moe"), DType::kFloat32)).value();
  Randomize(*w, 11, 0.1);
  const std::string plain = Folder("plain"), source = Folder("source");
  ASSERT_EQ(SaveHuggingFace(*w, plain), OkStatus());
  const auto stored = std::move(files::SafetensorsFolder::Open(plain)).value();
  std::vector<std::vector<std::byte>> kept;
  std::vector<files::TensorSource> tensors;
  for (const auto& [name, entry] : stored->tensors()) {
    const auto dtype =
        std::array{files::DType::kF16, files::DType::kBF16, files::DType::kF32}[kept.size() % 3];
    const int64_t n = entry.info->numel();
    std::vector<std::byte>& bytes = kept.emplace_back(static_cast<size_t>(n * files::DTypeBits(dtype) / 8));
    Rng rng(kept.size());
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Below(0x38));  // finite in every type
    tensors.push_back(files::SourceOf(name, dtype, entry.info->shape, bytes));
  }
  std::vector<std::byte> more(24, std::byte{7});
  tensors.push_back(files::SourceOf("model.rotary.inv_freq", files::DType::kI64, {3}, more));
  fs::create_directories(source);
  ASSERT_EQ(files::WriteSafetensorsFolder(source, tensors, int64_t{1} << 40), OkStatus());
  std::ofstream(source + "/config.json")
      << R"({"a_key": 1, "dtype": "float16", )" << Read(plain + "/config.json").substr(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::string out = Folder(dtype == DType::kFloat32 ? "wide" : "narrow"), trained = out + "_trained";
    const auto loaded = std::move(LoadHuggingFace(source, dtype)).value();
    ASSERT_EQ(SaveHuggingFace(*loaded, out, int64_t{1} << 40, source), OkStatus());
    EXPECT_EQ(Read(out + "/config.json"), Read(source + "/config.json"));
    const auto same = std::move(files::SafetensorsFolder::Open(out)).value();
    ASSERT_EQ(same->tensors().size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto entry = same->Find(tensors[i].name);
      ASSERT_TRUE(entry.has_value());
      EXPECT_EQ(entry->info->dtype, tensors[i].dtype) << tensors[i].name;
      EXPECT_EQ(entry->info->shape, tensors[i].shape);
      const auto& bytes = i < kept.size() ? kept[i] : more;
      EXPECT_TRUE(std::equal(entry->bytes().begin(), entry->bytes().end(), bytes.begin(), bytes.end()))
          << tensors[i].name;
    }
    at::Tensor norm = loaded->Get("final_norm");
    norm.add_(1);
    ASSERT_EQ(SaveHuggingFace(*loaded, trained, int64_t{1} << 40, source), OkStatus());
    const auto other = std::move(files::SafetensorsFolder::Open(trained)).value();
    EXPECT_EQ(other->Find("model.norm.weight")->info->dtype,
              dtype == DType::kFloat32 ? files::DType::kF32 : files::DType::kBF16);
    EXPECT_FALSE(other->Find("model.rotary.inv_freq").has_value());
    EXPECT_NE(Read(trained + "/config.json")
                  .find(dtype == DType::kFloat32 ? "\"dtype\": \"float32\"" : "\"dtype\": \"bfloat16\""),
              std::string::npos);
    EXPECT_EQ(std::move(LoadHuggingFace(trained, dtype)).value()->Digest(), loaded->Digest());
  }
}

TEST_F(HuggingFaceTest, AValueHeadIsAModelForSequenceClassification) {
  for (const std::string family : {"llama", "qwen2", "qwen3_moe"}) {
    const ModelSpec spec = TinySpec(family);
    auto writes = std::move(Weights::Create(spec, DType::kFloat32)).value();
    Randomize(*writes, 3, 0.1);
    auto scores = WithValueHead(*writes);
    ASSERT_TRUE(scores.ok()) << scores.status().ToString();
    // The blocks are those of the model, the head is zero.
    EXPECT_TRUE((*scores)->Get("final_norm").equal(writes->Get("final_norm")));
    EXPECT_TRUE((*scores)->Get("layers.1.o").equal(writes->Get("layers.1.o")));
    EXPECT_EQ((*scores)->Get("score").abs().sum().item<float>(), 0);
    EXPECT_EQ((*scores)->layout().back().name, "score");
    Randomize(**scores, 4, 0.1);
    (*scores)->Get("score").fill_(0.25);
    const std::string a = Folder(family + "_score");
    ASSERT_EQ(SaveHuggingFace(**scores, a), OkStatus());
    EXPECT_NE(Read(a + "/config.json").find("ForSequenceClassification"), std::string::npos);
    auto loaded = LoadHuggingFace(a, DType::kFloat32);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_TRUE((*loaded)->spec().value_head);
    EXPECT_EQ((*loaded)->Digest(), (*scores)->Digest());
  }
}

TEST_F(HuggingFaceTest, NamesAndRowsAreThoseOfTransformers) {
  const ModelSpec spec = TinySpec("qwen2");  // 4 heads, 2 kv heads of 24; d 48, ff 72
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  Randomize(*w, 4, 0.1);
  const std::string folder = Folder("names");
  ASSERT_EQ(SaveHuggingFace(*w, folder), OkStatus());
  const auto stored = std::move(files::SafetensorsFolder::Open(folder)).value();
  const auto expect_rows = [&](const std::string& hf, const std::string& name, int64_t row) {
    const auto entry = stored->Find(hf);
    ASSERT_TRUE(entry.has_value()) << hf;
    const at::Tensor t = w->Get(name);
    const int64_t width = t.dim() == 2 ? t.size(1) : 1;
    EXPECT_EQ(
        std::memcmp(entry->bytes().data(), t.const_data_ptr<float>() + row * width, entry->bytes().size()), 0)
        << hf;
  };
  expect_rows("model.layers.1.self_attn.q_proj.weight", "layers.1.qkv", 0);
  expect_rows("model.layers.1.self_attn.k_proj.weight", "layers.1.qkv", 96);
  expect_rows("model.layers.1.self_attn.v_proj.bias", "layers.1.qkv_bias", 144);
  expect_rows("model.layers.0.mlp.up_proj.weight", "layers.0.gate_up", 72);
  expect_rows("model.layers.0.post_attention_layernorm.weight", "layers.0.mlp_norm", 0);
  expect_rows("model.norm.weight", "final_norm", 0);
  EXPECT_FALSE(stored->Find("lm_head.weight").has_value());  // tied
  EXPECT_EQ(stored->tensors().size(), HuggingFaceTensors(spec).size());
}

TEST_F(HuggingFaceTest, ShardsAreWrittenAndRead) {
  auto w = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  w->Initialize(5, 0.1);
  const std::string folder = Folder("shards");
  ASSERT_EQ(SaveHuggingFace(*w, folder, 40000), OkStatus());
  EXPECT_TRUE(fs::exists(folder + "/model.safetensors.index.json"));
  EXPECT_EQ(std::move(LoadHuggingFace(folder, DType::kFloat32)).value()->Digest(), w->Digest());
}

TEST_F(HuggingFaceTest, StoredTypesAreConvertedToTheWantedOne) {
  auto w = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  w->Initialize(6, 0.1);
  const std::string folder = Folder("convert");
  ASSERT_EQ(SaveHuggingFace(*w, folder), OkStatus());
  const auto narrow = std::move(LoadHuggingFace(folder, DType::kBFloat16)).value();
  for (size_t i = 0; i < w->layout().size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    EXPECT_TRUE(w->Get(index).to(at::kBFloat16).equal(narrow->Get(index))) << w->layout()[i].name;
  }
}

TEST_F(HuggingFaceTest, BothDialectsOfConfigAreRead) {
  const auto four = SpecOf(
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99,
    "intermediate_size": 128, "num_hidden_layers": 3, "rope_theta": 100000, "rope_scaling": null, "torch_dtype": "bfloat16", "unknown": {"a": 1},
    "eos_token_id": 2, "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "hidden_act": "silu"})");
  ASSERT_TRUE(four.ok()) << four.status().ToString();
  EXPECT_EQ(four->rope_theta, 100000);
  EXPECT_EQ(four->head_size, 16);
  EXPECT_EQ(four->rms_norm_eps, 1e-5);
  EXPECT_TRUE(four->tie_embeddings);
  EXPECT_EQ(four->eos_token_ids, std::vector<int32_t>{2});
  const auto five = SpecOf(
      R"({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99,
    "intermediate_size": 128, "num_hidden_layers": 3, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "dtype": "float32",
    "layer_types": ["full_attention", "full_attention", "full_attention"], "sliding_window": null, "eos_token_id": [4, 5]})",
      R"({"eos_token_id": [6, 7], "pad_token_id": 3})");
  ASSERT_TRUE(five.ok()) << five.status().ToString();
  EXPECT_EQ(five->rope_theta, 1000000);
  EXPECT_EQ(five->head_size, 128);  // Qwen3Config's default
  EXPECT_TRUE(five->qk_norm);
  EXPECT_FALSE(five->tie_embeddings);
  EXPECT_EQ(five->eos_token_ids, (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(five->pad_token_id, 3);
}

TEST_F(HuggingFaceTest, LegalButMissingOptionsAreRefusedByName) {
  const std::string head =
      R"({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99, "intermediate_size": 128, )";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("model_type": "llama", "rope_scaling": {"rope_type": "longrope", "factor": 8.0}})", "longrope"},
      {R"("model_type": "qwen2", "rope_parameters": {"type": "mrope", "factor": 4.0, "rope_theta": 1e6}})",
       "mrope"},
      {R"("model_type": "qwen3", "rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       "by layer type"},
      {R"("model_type": "llama", "partial_rotary_factor": 0.5})", "partial_rotary_factor"},
      {R"("model_type": "llama", "hidden_act": "gelu"})", "gelu"},
      {R"("model_type": "mistral"})", "sliding_window 4096"},  // the default, and positions go to 131 072
      {R"("model_type": "mistral", "sliding_window": 16})", "sliding_window 16"},
      {R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 2})",
       "sliding_window 16"},
      {R"("model_type": "qwen3_moe", "use_sliding_window": true, "sliding_window": 16})",
       "sliding_window 16"},
      {R"("model_type": "qwen2_moe", "shared_expert_intermediate_size": 0})",
       "shared_expert_intermediate_size"},
      {R"("model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]})",
       "sliding_attention"},
      {R"("model_type": "llama", "quantization_config": {"bits": 4}})", "quantization_config"},
      {R"("model_type": "mamba"})", "mamba"}};
  for (const auto& [tail, word] : cases) {
    const auto spec = SpecOf(head + tail);
    EXPECT_EQ(spec.status().code(), StatusCode::kUnimplemented) << tail;
    EXPECT_NE(spec.status().message().find(word), std::string::npos) << spec.status().ToString();
  }
}

TEST_F(HuggingFaceTest, WindowsThatReachNothingAreNone) {
  const std::string head =
      R"({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99, "intermediate_size": 128, )";
  const std::vector<std::pair<std::string, bool>> cases = {
      {R"("model_type": "mistral", "sliding_window": null})", false},
      {R"("model_type": "mistral", "max_position_embeddings": 64})", true},
      {R"("model_type": "qwen2", "use_sliding_window": false, "sliding_window": 8})", false},
      {R"("model_type": "qwen2", "use_sliding_window": null, "sliding_window": 8})", false},
      {R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 32})",
       false},
      {R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": null})", false},
      {R"("model_type": "qwen3_moe", "use_sliding_window": true, "sliding_window": 64, "max_position_embeddings": 64})",
       true},
      {R"("model_type": "llama", "sliding_window": 8})", false}};
  for (const auto& [tail, ends] : cases) {
    const auto spec = SpecOf(head + tail);
    ASSERT_TRUE(spec.ok()) << tail << ": " << spec.status().ToString();
    EXPECT_EQ(spec->ends_at_max_position, ends) << tail;
  }
}

TEST_F(HuggingFaceTest, RopeScalingIsReadInBothDialectsAndWrittenBack) {
  const std::string head =
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 128, "max_position_embeddings": 512, )";
  const auto four = SpecOf(
      head +
      R"("rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128, "rope_type": "llama3"}})");
  const auto five = SpecOf(
      head +
      R"("rope_parameters": {"rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128, "rope_type": "llama3"}})");
  ASSERT_TRUE(four.ok()) << four.status().ToString();
  ASSERT_TRUE(five.ok()) << five.status().ToString();
  EXPECT_EQ(four->rope, five->rope);
  EXPECT_EQ(four->rope_theta, five->rope_theta);
  EXPECT_EQ(four->rope.type, RopeType::kLlama3);
  const std::string folder = Folder("again");
  for (const std::string& scaling : {std::string(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"),
                                     std::string(R"("rope_scaling": {"type": "linear", "factor": 2.0}})")}) {
    const auto spec = SpecOf(head + scaling);
    ASSERT_TRUE(spec.ok()) << spec.status().ToString();
    ASSERT_EQ(WriteConfigFiles(*spec, DType::kFloat32, folder), OkStatus());
    const auto again = ReadSpec(folder);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->rope, spec->rope);
  }
  EXPECT_FALSE(SpecOf(head + R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0}})")
                   .ok());  // no low_freq_factor
}

TEST_F(HuggingFaceTest, FewerLayersThanThereAreAreRefused) {
  ModelSpec spec = TinySpec("llama");
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  const std::string folder = Folder("fewer");
  ASSERT_EQ(SaveHuggingFace(*w, folder), OkStatus());
  ASSERT_EQ(CheckHuggingFace(folder), OkStatus());
  --spec.layers;
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  const Status refused = CheckHuggingFace(folder);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(
      refused.message().find("num_hidden_layers " + std::to_string(spec.layers) +
                             ", but the safetensors have model.layers." + std::to_string(spec.layers) + "."),
      std::string::npos)
      << refused.message();
}

TEST_F(HuggingFaceTest, ExpertsInOneTensorAreRead) {
  const ModelSpec spec = TinySpec("qwen3_moe");
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  Randomize(*w, 8, 0.1);
  const std::string folder = Folder("fused");
  std::vector<files::TensorSource> sources;
  for (const HuggingFaceTensor& t : HuggingFaceTensors(spec, ExpertTensors::kFused)) {
    const Parameter& p = w->layout()[static_cast<size_t>(t.index)];
    int64_t n = 1;
    for (const int64_t size : t.shape) n *= size;
    sources.push_back(files::SourceOf(
        t.name, files::DType::kF32, t.shape,
        w->bytes().subspan(static_cast<size_t>((p.offset + t.row * (p.numel() / p.shape[0])) * 4),
                           static_cast<size_t>(n * 4))));
  }
  ASSERT_EQ(files::WriteSafetensorsFolder(folder, sources, int64_t{1} << 40), OkStatus());
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  const auto loaded = LoadHuggingFace(folder, DType::kFloat32);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->Digest(), w->Digest());
}

TEST_F(HuggingFaceTest, MillionsOfExpertsAreRefusedBeforeTheyAreListed) {
  ModelSpec spec = TinySpec("qwen3_moe");
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  const std::string folder = Folder("many");
  ASSERT_EQ(SaveHuggingFace(*w, folder), OkStatus());
  spec.moe.experts = 4096, spec.layers = 4096;
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  const Status status = CheckHuggingFace(folder);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("experts"), std::string::npos) << status.ToString();
}

TEST_F(HuggingFaceTest, WrongConfigsNameTheKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "JSON"},
      {"[]", "object"},
      {"{\"hidden_size\": 4}", "model_type"},
      {R"({"model_type": "llama", "hidden_size": "big"})", "hidden_size"},
      {R"({"model_type": "llama", "num_hidden_layers": 0})", "layers"},
      {R"({"model_type": "llama", "num_key_value_heads": 5})", "kv_heads"},
      {R"({"model_type": "llama", "head_dim": 23})", "head_size"},
      {R"({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3, "num_key_value_heads": 3})",
       "multiple"},
      {R"({"model_type": "llama", "vocab_size": 1e30})", "vocab_size"},
      {R"({"model_type": "llama", "hidden_size": 18446744073709551615})", "hidden_size"},
      {R"({"model_type": "llama", "eos_token_id": "x"})", "eos_token_id"},
      {R"({"model_type": "llama", "rope_scaling": 3})", "rope_scaling"}};
  for (const auto& [config, word] : cases) {
    const auto spec = SpecOf(config);
    EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument) << config;
    EXPECT_NE(spec.status().message().find(word), std::string::npos) << spec.status().ToString();
  }
  EXPECT_EQ(ReadSpec(root_.string() + "/nowhere").status().code(), StatusCode::kNotFound);
}

TEST_F(HuggingFaceTest, MissingAndMisshapenTensorsAreNamedBeforeAnythingIsAllocated) {
  ModelSpec spec = TinySpec();
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  const std::string folder = Folder("broken");
  ASSERT_EQ(SaveHuggingFace(*w, folder), OkStatus());
  spec.vocab_size = 62;
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  auto loaded = LoadHuggingFace(folder, DType::kFloat32);
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find("model.embed_tokens.weight: shape [61, 48], expected [62, 48]"),
            std::string::npos)
      << loaded.status().ToString();
  spec.vocab_size = 61;
  spec.tie_embeddings = false;
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  EXPECT_NE(CheckHuggingFace(folder).message().find("lm_head.weight"), std::string::npos);
  spec.layers = 4096;  // a promise of many gigabytes
  spec.tie_embeddings = true;
  ASSERT_EQ(WriteConfigFiles(spec, DType::kFloat32, folder), OkStatus());
  EXPECT_NE(CheckHuggingFace(folder).message().find("model.layers.2."), std::string::npos);
}

}  // namespace
}  // namespace tidepool::model
