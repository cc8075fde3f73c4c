#include "core/model/gguf_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/files/float_formats.h"
#include "core/files/safetensors.h"
#include "core/model/hugging_face.h"
#include "tests/core/files/gguf_builder.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::files {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A llama model of one block: hidden 8, 2 heads of 4, 1 kv head, ff 6, vocabulary of 5.
struct Options {
  std::string architecture = "llama";
  std::string pre = "smollm";
  bool output = false;
  bool bias = false;
  bool end = true;  // names its end token
};
GgufBuilder Model(const Options& options) {
  GgufBuilder b;
  const std::string& a = options.architecture;
  b.String("general.architecture", a);
  b.Uint32(a + ".block_count", 1);
  b.Uint32(a + ".context_length", 64);
  b.Uint32(a + ".embedding_length", 8);
  b.Uint32(a + ".feed_forward_length", 6);
  b.Uint32(a + ".attention.head_count", 2);
  b.Uint32(a + ".attention.head_count_kv", 1);
  b.Float(a + ".attention.layer_norm_rms_epsilon", 1e-5F);
  b.Float(a + ".rope.freq_base", 100000.0F);
  b.String("tokenizer.ggml.model", "gpt2");
  b.String("tokenizer.ggml.pre", options.pre);
  b.Strings("tokenizer.ggml.tokens", {"<|end|>", "a", "b", "ab", "[PAD4]"});
  b.Int32s("tokenizer.ggml.token_type", {3, 1, 1, 1, 5});
  b.Strings("tokenizer.ggml.merges", {"a b"});
  b.Uint32("tokenizer.ggml.bos_token_id", 0);
  if (options.end) b.Uint32("tokenizer.ggml.eos_token_id", 0);
  b.String("tokenizer.chat_template", "{{ messages }}");
  float next = 0;
  const auto tensor = [&](const std::string& name, std::vector<uint64_t> ne) {
    uint64_t count = 1;
    for (const uint64_t extent : ne) count *= extent;
    std::vector<float> values(count);
    for (float& value : values) value = next++;
    b.Tensor(name, ne, 0, Floats(values));
  };
  tensor("token_embd.weight", {8, 5});
  tensor("blk.0.attn_norm.weight", {8});
  next = 0;
  tensor("blk.0.attn_q.weight", {8, 8});
  if (options.bias) {
    tensor("blk.0.attn_q.bias", {8});
    tensor("blk.0.attn_k.bias", {4});
    tensor("blk.0.attn_v.bias", {4});
  }
  tensor("blk.0.attn_k.weight", {8, 4});
  tensor("blk.0.attn_v.weight", {8, 4});
  tensor("blk.0.attn_output.weight", {8, 8});
  tensor("blk.0.ffn_norm.weight", {8});
  if (a.ends_with("moe")) {
    b.Uint32(a + ".expert_count", 3);
    b.Uint32(a + ".expert_used_count", 2);
    tensor("blk.0.ffn_gate_inp.weight", {8, 3});
    next = 0;
    tensor("blk.0.ffn_gate_exps.weight", {8, 4, 3});
    tensor("blk.0.ffn_up_exps.weight", {8, 4, 3});
    tensor("blk.0.ffn_down_exps.weight", {4, 8, 3});
    if (a == "qwen2moe") {
      tensor("blk.0.ffn_gate_shexp.weight", {8, 10});
      tensor("blk.0.ffn_up_shexp.weight", {8, 10});
      tensor("blk.0.ffn_down_shexp.weight", {10, 8});
      tensor("blk.0.ffn_gate_inp_shexp.weight", {8});
    }
  } else {
    tensor("blk.0.ffn_gate.weight", {8, 6});
    tensor("blk.0.ffn_up.weight", {8, 6});
    tensor("blk.0.ffn_down.weight", {6, 8});
  }
  tensor("output_norm.weight", {8});
  if (options.output) tensor("output.weight", {8, 5});
  return b;
}

Status Import(const TestFolder& folder, const GgufBuilder& builder,
              model::DType dtype = model::DType::kBFloat16) {
  return model::ImportGguf(folder.Write("m.gguf", builder.Build()), folder.path() + "/out", dtype);
}

TEST(ImportGgufTest, WritesAHuggingFaceFolder) {
  TestFolder folder;
  const Status status = Import(folder, Model({}));
  ASSERT_TRUE(status.ok()) << status.ToString();
  const json config = json::parse(folder.Read("out/config.json"));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["vocab_size"], 5);
  EXPECT_EQ(config["head_dim"], 4);
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_EQ(config["rms_norm_eps"].dump(), "1e-05");  // not 9.99999974e-06
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(json::parse(folder.Read("out/generation_config.json"))["eos_token_id"], 0);
  EXPECT_EQ(folder.Read("out/chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(json::parse(folder.Read("out/tokenizer_config.json"))["eos_token"], "<|end|>");

  const json tokenizer = json::parse(folder.Read("out/tokenizer.json"));
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Digits");
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 4U);  // without the padding token
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<|end|>");
}

TEST(ImportGgufTest, RowsOfQueryAndKeyGoBackToHalves) {
  TestFolder folder;
  ASSERT_TRUE(Import(folder, Model({}), model::DType::kFloat32).ok());
  const auto file = SafetensorsFile::Open(folder.path() + "/out/model.safetensors");
  ASSERT_TRUE(file.ok());
  const TensorInfo* q = (*file)->Find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  std::vector<float> values(64);
  std::memcpy(values.data(), (*file)->Bytes(*q).data(), 256);
  // Row r of the file begins with 8 r. Within a head, pairs (0 1) (2 3) become halves (0 2) (1 3).
  const int from[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int row = 0; row < 8; ++row)
    EXPECT_EQ(values[static_cast<size_t>(row) * 8], 8.0F * static_cast<float>(from[row]));
}

TEST(ImportGgufTest, QwenRowsStayAndBiasesAreKept) {
  TestFolder folder;
  const Status status =
      Import(folder, Model({.architecture = "qwen2", .pre = "qwen2", .output = true, .bias = true}),
             model::DType::kFloat32);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto file = SafetensorsFile::Open(folder.path() + "/out/model.safetensors");
  ASSERT_TRUE(file.ok());
  float value = 0;
  std::memcpy(&value, (*file)->Bytes(*(*file)->Find("model.layers.0.self_attn.q_proj.weight")).data() + 32,
              4);
  EXPECT_EQ(value, 8.0F);
  EXPECT_NE((*file)->Find("model.layers.0.self_attn.q_proj.bias"), nullptr);
  EXPECT_NE((*file)->Find("lm_head.weight"), nullptr);
  EXPECT_EQ(json::parse(folder.Read("out/config.json"))["tie_word_embeddings"], false);
  EXPECT_EQ(json::parse(folder.Read("out/tokenizer.json"))["normalizer"]["type"], "NFC");
}

// One tensor a layer in the file, one for each expert in the folder.
TEST(ImportGgufTest, ExpertsAreTakenApart) {
  for (const std::string architecture : {"qwen2moe", "qwen3moe"}) {
    TestFolder folder;
    const bool shared = architecture == "qwen2moe";
    const Status status =
        Import(folder, Model({.architecture = architecture, .pre = "qwen2", .bias = shared}),
               model::DType::kFloat32);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const auto file = SafetensorsFile::Open(folder.path() + "/out/model.safetensors");
    ASSERT_TRUE(file.ok());
    const auto first = [&](const std::string& name, std::vector<int64_t> shape) {
      const TensorInfo* info = (*file)->Find("model.layers.0.mlp." + name);
      if (info == nullptr || info->shape != shape) return -1.0F;
      float value = 0;
      std::memcpy(&value, (*file)->Bytes(*info).data(), 4);
      return value;
    };
    for (int e = 0; e < 3; ++e) {
      const std::string expert = "experts." + std::to_string(e) + ".";
      EXPECT_EQ(first(expert + "gate_proj.weight", {4, 8}), 32.0F * static_cast<float>(e)) << architecture;
      EXPECT_EQ(first(expert + "up_proj.weight", {4, 8}), 96 + 32.0F * static_cast<float>(e));
      EXPECT_EQ(first(expert + "down_proj.weight", {8, 4}), 192 + 32.0F * static_cast<float>(e));
    }
    EXPECT_GE(first("gate.weight", {3, 8}), 0);
    EXPECT_EQ(first("shared_expert_gate.weight", {1, 8}), shared ? 288 + 240 : -1);
    const json config = json::parse(folder.Read("out/config.json"));
    EXPECT_EQ(config["model_type"], shared ? "qwen2_moe" : "qwen3_moe");
    EXPECT_EQ(config["num_experts"], 3);
    EXPECT_EQ(config["num_experts_per_tok"], 2);
    EXPECT_EQ(config["moe_intermediate_size"], 4);
    EXPECT_EQ(config["norm_topk_prob"], !shared);
    EXPECT_EQ(config.value("shared_expert_intermediate_size", 0), shared ? 10 : 0);
  }
}

// The folder is read as the file described it.
TEST(ImportGgufTest, TheFolderIsReadBack) {
  for (const std::string architecture : {"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe"}) {
    TestFolder folder;
    const bool bias = architecture.starts_with("qwen2");
    ASSERT_TRUE(Import(folder, Model({.architecture = architecture, .pre = "qwen2", .bias = bias})).ok());
    const auto spec = model::ReadSpec(folder.path() + "/out");
    ASSERT_TRUE(spec.ok()) << architecture << ": " << spec.status().ToString();
    EXPECT_EQ(spec->qkv_bias, bias);
    EXPECT_EQ(spec->kv_heads, 1);
    EXPECT_EQ(spec->rope_theta, 100000.0);
    EXPECT_EQ(spec->eos_token_ids, std::vector<int32_t>{0});
    EXPECT_EQ(spec->moe.experts, architecture.ends_with("moe") ? 3 : 0);
    // The file above has no norms of q and k.
    EXPECT_EQ(model::CheckHuggingFace(folder.path() + "/out").ok(), !architecture.starts_with("qwen3"));
  }
}

TEST(ImportGgufTest, ALlamaThatNamesNoEndTokenHasThatOfItsFamily) {
  TestFolder folder;
  ASSERT_TRUE(Import(folder, Model({.end = false})).ok());
  const auto spec = model::ReadSpec(folder.path() + "/out");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->eos_token_ids, std::vector<int32_t>{2});
}

TEST(ImportGgufTest, Bf16IsRounded) {
  TestFolder folder;
  ASSERT_TRUE(Import(folder, Model({})).ok());
  const auto file = SafetensorsFile::Open(folder.path() + "/out/model.safetensors");
  const TensorInfo* norm = (*file)->Find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->dtype, DType::kBF16);
  EXPECT_EQ((*file)->Bytes(*norm).size(), 16U);
}

TEST(ImportGgufTest, WhatIsUnknownIsRefusedByName) {
  TestFolder folder;
  EXPECT_THAT(Import(folder, Model({.architecture = "mamba"})).message(), HasSubstr("mamba"));
  EXPECT_THAT(Import(folder, Model({.pre = "tekken"})).message(), HasSubstr("\"tekken\""));
  GgufBuilder extra = Model({});
  extra.Tensor("rope_freqs.weight", {2}, 0, Floats({1, 1}));
  EXPECT_THAT(Import(folder, extra).message(), HasSubstr("rope_freqs.weight"));
  EXPECT_THAT(Import(folder, Model({.architecture = "qwen2"})).message(), HasSubstr("biases"));
  // Nothing that looks like a model is left.
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/config.json"));
}

}  // namespace
}  // namespace tidepool::files
