#include "core/model/adapter_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "core/base/rng.h"
#include "core/files/safetensors.h"
#include "core/model/weights.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

namespace fs = std::filesystem;

class AdapterFilesTest : public testing::Test {
 protected:
  AdapterFilesTest() {
    root_ = fs::temp_directory_path() / ("tidepool_adapter_" + std::to_string(::getpid()) + "_" +
                                         testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_);
  }
  ~AdapterFilesTest() override { fs::remove_all(root_); }
  std::string Folder(const std::string& name) { return (root_ / name).string(); }

  std::unique_ptr<Weights> Base(const std::string& name, uint64_t seed, const std::string& family = "llama",
                                DType dtype = DType::kFloat32) {
    auto w = std::move(Weights::Create(TinySpec(family), dtype)).value();
    Randomize(*w, seed, 0.1);
    EXPECT_EQ(SaveHuggingFace(*w, Folder(name)), OkStatus());
    return w;
  }
  static AdapterSpec Spec(std::vector<AdapterTarget> targets, bool rslora = false) {
    return {.rank = 3, .alpha = 6, .rslora = rslora, .targets = std::move(targets)};
  }
  static std::vector<float> Values(const ModelSpec& base, const AdapterSpec& adapter) {
    std::vector<float> values(static_cast<size_t>(AdapterElements(base, adapter)));
    Rng rng(7);
    for (const Parameter& p : AdapterLayout(base, adapter))  // what is between parameters stays 0
      for (int64_t i = 0; i < p.numel(); ++i)
        values[static_cast<size_t>(p.offset + i)] = static_cast<float>(rng.Uniform() - 0.5);
    return values;
  }
  Status Save(const std::vector<float>& values, const ModelSpec& base, const AdapterSpec& adapter,
              const std::string& base_folder, const std::string& folder) {
    return SaveAdapter({base, adapter, DType::kFloat32, std::as_bytes(std::span(values))}, base_folder,
                       folder);
  }
  // The config of a folder with one key changed.
  static void Change(const std::string& folder, const std::string& key, const nlohmann::json& value) {
    const std::string path = folder + "/" + kAdapterConfigFile;
    nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
    config[key] = value;
    std::ofstream(path) << config;
  }
  fs::path root_;
};

TEST_F(AdapterFilesTest, ComesBackAsItWasSaved) {
  using enum AdapterTarget;
  const auto base = Base("base", 1);
  for (const auto& targets : {std::vector{kQ, kK, kV, kO, kGate, kUp, kDown},
                              {kQ, kV},
                              {kO},
                              {kK, kUp, kDown},
                              {kEmbedding},
                              {kHead},
                              {kQ, kEmbedding, kHead}}) {
    AdapterSpec adapter = Spec(targets, targets.size() == 2);
    adapter.score = targets == std::vector{kO};  // of a reward model
    const std::vector<float> values = Values(base->spec(), adapter);
    ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
    const auto opened = AdapterFolder::Open(Folder("adapter"));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_EQ(opened->spec(), adapter);
    EXPECT_EQ(opened->base(), Folder("base"));
    EXPECT_EQ(opened->CheckBase(Folder("base")), OkStatus());
    std::vector<float> back(values.size(), 9.0F);
    opened->Read(base->spec(), DType::kFloat32, std::as_writable_bytes(std::span(back)));
    EXPECT_EQ(back, values);
  }
}

TEST_F(AdapterFilesTest, MergedMatricesAreThoseOfTheFormulaAndTheRestIsUntouched) {
  using enum AdapterTarget;
  const auto base = Base("base", 1);
  const AdapterSpec adapter = Spec({kQ, kV, kDown});
  const std::vector<float> values = Values(base->spec(), adapter);
  ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
  const auto opened = AdapterFolder::Open(Folder("adapter"));
  ASSERT_EQ(MergeAdapter(*opened, Folder("base"), Folder("merged")), OkStatus());
  const auto before = files::SafetensorsFolder::Open(Folder("base")),
             after = files::SafetensorsFolder::Open(Folder("merged"));
  const auto stored = files::SafetensorsFile::Open(Folder("adapter") + "/" + kAdapterTensorsFile);
  const auto value = [](std::span<const std::byte> bytes, int64_t i) {
    float v = 0;
    std::memcpy(&v, bytes.data() + i * 4, 4);
    return v;
  };
  int64_t merged = 0;
  for (const auto& [name, entry] : (*before)->tensors()) {
    const auto now = (*after)->Find(name);
    ASSERT_TRUE(now.has_value()) << name;
    const std::string module = "base_model.model." + name.substr(0, name.size() - std::strlen(".weight"));
    const auto* a = (*stored)->Find(module + ".lora_A.weight");
    if (a == nullptr) {
      EXPECT_EQ(std::memcmp(now->bytes().data(), entry.bytes().data(), entry.bytes().size()), 0) << name;
      continue;
    }
    ++merged;
    const auto* b = (*stored)->Find(module + ".lora_B.weight");
    const int64_t n = entry.info->shape[0], k = entry.info->shape[1];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < k; ++c) {
        double sum = value(entry.bytes(), i * k + c);
        for (int64_t r = 0; r < 3; ++r)
          sum += 2.0 * value((*stored)->Bytes(*b), i * 3 + r) * value((*stored)->Bytes(*a), r * k + c);
        ASSERT_NEAR(value(now->bytes(), i * k + c), sum, 1e-6) << name;
      }
    }
  }
  EXPECT_EQ(merged, 3 * base->spec().layers);
  EXPECT_EQ(CheckHuggingFace(Folder("merged")), OkStatus());
}

TEST_F(AdapterFilesTest, OfExpertsComesBackAndMergesAsTheFormulaSays) {
  using enum AdapterTarget;
  for (const char* family : {"qwen2_moe", "qwen3_moe"}) {
    const std::string folder = Folder(family);
    const auto base = Base(family, 1, family);
    const ModelSpec& spec = base->spec();
    const int64_t experts = spec.moe.experts, m = spec.moe.intermediate_size, d = spec.hidden_size;
    for (const auto& targets :
         {std::vector{kExpertsGateUp}, {kExpertsDown}, {kQ, kExpertsGateUp, kExpertsDown}}) {
      const AdapterSpec adapter = Spec(targets);
      const std::vector<float> values = Values(spec, adapter);
      ASSERT_EQ(Save(values, spec, adapter, folder, folder + "_adapter"), OkStatus());
      const auto opened = AdapterFolder::Open(folder + "_adapter");
      ASSERT_TRUE(opened.ok()) << opened.status().ToString();
      EXPECT_EQ(opened->spec(), adapter);
      EXPECT_EQ(opened->CheckBase(folder), OkStatus());
      std::vector<float> back(values.size(), 9.0F);
      opened->Read(spec, DType::kFloat32, std::as_writable_bytes(std::span(back)));
      EXPECT_EQ(back, values);

      // As PEFT has it: A [experts * rank, in], and of B [out, rank * experts] column r * experts + e.
      const auto stored = files::SafetensorsFile::Open(folder + "_adapter/" + kAdapterTensorsFile);
      const auto value = [](std::span<const std::byte> bytes, int64_t i) {
        float v = 0;
        std::memcpy(&v, bytes.data() + i * 4, 4);
        return v;
      };
      const auto change = [&](AdapterTarget target, int64_t e, int64_t row, int64_t column) {
        if (!adapter.Has(target)) return 0.0;
        const bool nested = target == kExpertsGateUp && adapter.Has(kExpertsDown);
        const std::string module =
            std::string("base_model.model.model.layers.0.mlp.experts.") + (nested ? "base_layer." : "");
        const auto *a = (*stored)->Find(module + "lora_A.weight"),
                   *b = (*stored)->Find(module + "lora_B.weight");
        const int64_t k = a->shape[1];
        EXPECT_EQ(a->shape[0], experts * 3);
        EXPECT_EQ(b->shape[1], experts * 3);
        double sum = 0;
        for (int64_t r = 0; r < 3; ++r)
          sum += 2.0 * value((*stored)->Bytes(*b), row * 3 * experts + r * experts + e) *
                 value((*stored)->Bytes(*a), (e * 3 + r) * k + column);
        return sum;
      };
      ASSERT_EQ(MergeAdapter(*opened, folder, folder + "_merged"), OkStatus());
      EXPECT_EQ(CheckHuggingFace(folder + "_merged"), OkStatus());
      const auto before = files::SafetensorsFolder::Open(folder),
                 after = files::SafetensorsFolder::Open(folder + "_merged");
      for (int64_t e = 0; e < experts; ++e) {
        const std::string at = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
        for (const auto& [name, target, first, rows, columns] :
             {std::tuple("gate_proj.weight", kExpertsGateUp, int64_t{0}, m, d),
              {"up_proj.weight", kExpertsGateUp, m, m, d},
              {"down_proj.weight", kExpertsDown, 0, d, m}}) {
          const auto was = (*before)->Find(at + name), is = (*after)->Find(at + name);
          ASSERT_TRUE(was && is) << at << name;
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t c = 0; c < columns; ++c)
              ASSERT_NEAR(value(is->bytes(), i * columns + c),
                          value(was->bytes(), i * columns + c) + change(target, e, first + i, c), 1e-6)
                  << at << name << " " << i << " " << c;
        }
      }
      fs::remove_all(folder + "_merged");
    }
  }
}

TEST_F(AdapterFilesTest, OfExpertsNeedsAModelThatHasThemWhereTheyAreChosen) {
  using enum AdapterTarget;
  const auto base = Base("base", 1, "qwen3_moe");
  const auto dense = Base("dense", 1, "qwen3");
  const auto refusal = [&](const AdapterSpec& adapter, const nlohmann::json& changes,
                           const std::string& model) -> Status {
    EXPECT_EQ(Save(Values(base->spec(), adapter), base->spec(), adapter, "", Folder("adapter")), OkStatus());
    for (const auto& [key, value] : changes.items()) Change(Folder("adapter"), key, value);
    const auto opened = AdapterFolder::Open(Folder("adapter"));
    return opened.ok() ? opened->CheckBase(Folder(model)) : opened.status();
  };
  const AdapterSpec both = Spec({kExpertsGateUp, kExpertsDown}), one = Spec({kExpertsDown});
  struct Case {
    const AdapterSpec& adapter;
    nlohmann::json changes;
    const char* model;
    const char* word;  // empty: it fits
  };
  for (const Case& c : std::vector<Case>{
           {both, {}, "base", ""},
           {both, {{"target_parameters", {"gate_up_proj", "experts.down_proj"}}}, "base", ""},
           {both, {{"target_modules", nullptr}, {"layers_to_transform", {0}}}, "base", ""},
           {both, {}, "dense", "it is an adapter of another model"},
           {both, {{"target_parameters", nullptr}}, "base", "experts"},
           {both, {{"target_parameters", {"mlp.experts.down_proj"}}}, "base", "base_layer"},
           {both, {{"target_parameters", "mlp.experts.down_proj"}}, "base", "target_parameters"},
           {both, {{"target_parameters", {"down_proj", "gate_up_proj", "router.weight"}}}, "base", "router"},
           {one, {}, "base", ""},
           // Another parameter of the same sides has the same tensors, and these have other sides.
           {one, {{"target_parameters", {"gate_up_proj"}}}, "base", "shape"},
           {one, {{"target_parameters", {"layers.0.mlp.experts.down_proj"}}}, "base", "layers.2.mlp.experts"},
           {one, {{"target_modules", {"gate_proj"}}}, "base", "gate_proj"},
           {one, {{"r", 2}}, "base", "shape"}}) {
    const Status status = refusal(c.adapter, c.changes, c.model);
    EXPECT_EQ(status.ok(), std::string(c.word).empty()) << c.changes << ": " << status.message();
    EXPECT_NE(status.message().find(c.word), std::string::npos) << c.changes << ": " << status.message();
  }
  EXPECT_NE(CheckAdapter(dense->spec(), one).message().find("no layer of the model has experts"),
            std::string::npos);
  AdapterSpec wide = one;
  wide.rank = 41;
  EXPECT_NE(CheckAdapter(base->spec(), wide).message().find("40, the smaller side"), std::string::npos);
  EXPECT_NE(CheckAdapter(base->spec(), Spec({kGate})).message().find("take experts"), std::string::npos);
}

// As config.json says, whatever it is.
TEST_F(AdapterFilesTest, MergedMatricesHaveTheTypeThatTheFolderHas) {
  const auto base = Base("base", 1);
  const auto stored = std::move(files::SafetensorsFolder::Open(Folder("base"))).value();
  for (const auto type : {files::DType::kF16, files::DType::kF64, files::DType::kBF16}) {
    const std::string name(files::DTypeName(type));
    std::map<std::string, std::vector<std::byte>> values;
    std::vector<files::TensorSource> tensors;
    for (const auto& [tensor, entry] : stored->tensors()) {
      auto& bytes = values[tensor];
      bytes.resize(static_cast<size_t>(entry.info->numel() * files::DTypeBits(type) / 8));
      files::ConvertFloats(entry.info->dtype, entry.bytes().data(), entry.info->numel(), type, bytes.data());
      tensors.push_back(files::SourceOf(tensor, type, entry.info->shape, bytes));
    }
    fs::create_directories(Folder(name));
    ASSERT_EQ(files::WriteSafetensorsFolder(Folder(name), tensors, int64_t{1} << 30), OkStatus());
    fs::copy(Folder("base") + "/config.json", Folder(name) + "/config.json");
    const AdapterSpec adapter = Spec({AdapterTarget::kQ});
    ASSERT_EQ(
        Save(Values(base->spec(), adapter), base->spec(), adapter, Folder(name), Folder(name + "_adapter")),
        OkStatus());
    const auto opened = AdapterFolder::Open(Folder(name + "_adapter"));
    ASSERT_EQ(MergeAdapter(*opened, Folder(name), Folder(name + "_merged")), OkStatus());
    const auto merged = std::move(files::SafetensorsFolder::Open(Folder(name + "_merged"))).value();
    int changed = 0;
    for (const auto& [tensor, entry] : merged->tensors()) {
      EXPECT_EQ(entry.info->dtype, type) << tensor;
      changed += std::memcmp(entry.bytes().data(), values[tensor].data(), values[tensor].size()) != 0 ? 1 : 0;
    }
    EXPECT_EQ(changed, base->spec().layers);
    EXPECT_EQ(CheckHuggingFace(Folder(name + "_merged")), OkStatus());
  }
}

TEST_F(AdapterFilesTest, AnotherModelIsRefusedByShapeOrByFingerprint) {
  const auto base = Base("base", 1);
  Base("same_shapes", 2);
  ASSERT_EQ(SaveHuggingFace(*std::move(LoadHuggingFace(Folder("base"), DType::kBFloat16)).value(),
                            Folder("rounded")),
            OkStatus());
  ModelSpec narrow = base->spec();
  narrow.intermediate_size += 8;
  ASSERT_EQ(
      SaveHuggingFace(*std::move(Weights::Create(narrow, DType::kFloat32)).value(), Folder("other_shapes")),
      OkStatus());
  const AdapterSpec adapter = Spec({AdapterTarget::kQ, AdapterTarget::kUp});
  ASSERT_EQ(Save(Values(base->spec(), adapter), base->spec(), adapter, Folder("base"), Folder("adapter")),
            OkStatus());
  const auto opened = AdapterFolder::Open(Folder("adapter"));
  EXPECT_EQ(opened->CheckBase(Folder("base")), OkStatus());
  EXPECT_EQ(opened->CheckBase(Folder("rounded")), OkStatus());  // the same model in another type
  const Status shapes = opened->CheckBase(Folder("other_shapes")),
               values = opened->CheckBase(Folder("same_shapes"));
  EXPECT_NE(shapes.message().find("up_proj.lora_B.weight: shape ["), std::string::npos) << shapes.message();
  EXPECT_NE(values.message().find("fingerprint"), std::string::npos) << values.message();
  EXPECT_NE(values.message().find(*Fingerprint(Folder("same_shapes"))), std::string::npos)
      << values.message();
}

TEST_F(AdapterFilesTest, WhatIsNotImplementedIsNamedWithFileAndKey) {
  const auto base = Base("base", 1);
  const AdapterSpec adapter = Spec({AdapterTarget::kQ});
  const std::vector<float> values = Values(base->spec(), adapter);
  struct Case {
    const char* key;
    nlohmann::json value;
    StatusCode code;
  };
  for (const Case& c :
       {Case{"peft_type", "LOHA", StatusCode::kUnimplemented},
        Case{"bias", "all", StatusCode::kUnimplemented}, Case{"use_dora", true, StatusCode::kUnimplemented},
        Case{"rank_pattern", {{"q_proj", 4}}, StatusCode::kUnimplemented},
        Case{"alpha_pattern", {{"q_proj", 4}}, StatusCode::kUnimplemented},
        Case{"modules_to_save", {"lm_head"}, StatusCode::kUnimplemented},
        Case{"init_lora_weights", "pissa", StatusCode::kUnimplemented},
        Case{"task_type", "SEQ_CLS", StatusCode::kInvalidArgument},
        Case{"task_type", "TOKEN_CLS", StatusCode::kUnimplemented},
        Case{"a_key_of_the_future", 3, StatusCode::kUnimplemented},
        Case{"r", 4, StatusCode::kInvalidArgument}, Case{"r", "four", StatusCode::kInvalidArgument},
        Case{"r", 0, StatusCode::kInvalidArgument}, Case{"r", 4097, StatusCode::kInvalidArgument},
        Case{"lora_alpha", -2, StatusCode::kInvalidArgument},
        Case{"lora_alpha", 0, StatusCode::kInvalidArgument},
        Case{"target_modules", {"q_proj", "v_proj"}, StatusCode::kInvalidArgument}}) {
    ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
    Change(Folder("adapter"), c.key, c.value);
    const Status status = AdapterFolder::Open(Folder("adapter")).status();
    EXPECT_EQ(status.code(), c.code) << c.key << ": " << status.message();
    EXPECT_NE(status.message().find(Folder("adapter") + "/adapter_"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(c.key), std::string::npos) << status.message();
  }
  // What the config chooses is what has tensors; there are those of q_proj in all layers.
  for (const auto& [config, word] : std::vector<std::pair<nlohmann::json, const char*>>{
           {{{"target_modules", {"q_proj", "lm_head"}}}, "lm_head"},
           {{{"target_modules", {"q_proj", "v_proj"}}, {"layers_to_transform", {0, 1}}},
            "0.self_attn.v_proj"},
           {{{"layers_to_transform", {0}}}, "1.self_attn.q_proj"},
           {{{"layers_to_transform", 0}}, "1.self_attn.q_proj"},
           {{{"exclude_modules", {"layers.1.self_attn.q_proj"}}}, "1.self_attn.q_proj"},
           {{{"exclude_modules", ".*\\.0\\..*"}}, "0.self_attn.q_proj"},
           {{{"target_modules", {"v_proj"}}}, "self_attn"},
           {{{"target_modules", ".*\\.0\\..*q_proj"}}, "1.self_attn.q_proj"},
           {{{"target_modules", "q_proj"}}, "0.self_attn.q_proj"},
           {{{"target_modules", ".*(q|k)_proj"}}, "0.self_attn.k_proj"},
           {{{"target_modules", "all-linear"}}, "0.self_attn.k_proj"},
           {{{"target_modules", ".*(q_proj"}}, "bad regular expression"},
           {{{"target_modules", nullptr}}, "is missing"},
           {{{"layers_pattern", "blocks"}}, "layers_pattern"},
           {{{"layers_to_transform", {"a"}}}, "layers_to_transform"}}) {
    ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
    for (const auto& [key, value] : config.items()) Change(Folder("adapter"), key, value);
    const Status status = AdapterFolder::Open(Folder("adapter")).status();
    EXPECT_FALSE(status.ok()) << config;
    EXPECT_NE(status.message().find(word), std::string::npos) << config << ": " << status.message();
  }
  for (const nlohmann::json& config : std::vector<nlohmann::json>{
           {{"layers_to_transform", {0, 1}}},
           {{"target_modules", {"self_attn.q_proj"}}},
           {{"target_modules", {"model.layers.0.self_attn.q_proj", "1.self_attn.q_proj"}}},
           {{"target_modules", {"q_proj", "v_proj"}}, {"exclude_modules", {"v_proj"}}},
           {{"target_modules", "all-linear"}, {"exclude_modules", ".*((k|v|o)_proj|mlp.*)"}}}) {
    ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
    for (const auto& [key, value] : config.items()) Change(Folder("adapter"), key, value);
    EXPECT_EQ(AdapterFolder::Open(Folder("adapter")).status(), OkStatus()) << config;
  }
  // What says nothing, or nothing of the result.
  ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
  Change(Folder("adapter"), "target_modules", "model\\..*q_proj");
  Change(Folder("adapter"), "lora_dropout", 0.1);
  Change(Folder("adapter"), "eva_config", nullptr);
  EXPECT_EQ(AdapterFolder::Open(Folder("adapter")).status(), OkStatus());
  fs::remove(Folder("adapter") + "/" + kAdapterTensorsFile);
  EXPECT_EQ(AdapterFolder::Open(Folder("adapter")).status().code(), StatusCode::kNotFound);
}

// An adapter of some layers leaves the others as they are.
TEST_F(AdapterFilesTest, AValueThatIsNotFiniteIsNamed) {
  const auto base = Base("base", 1);
  const AdapterSpec adapter = Spec({AdapterTarget::kQ}, false);
  std::vector<float> values = Values(base->spec(), adapter);
  values[5] = std::nanf("");
  ASSERT_EQ(Save(values, base->spec(), adapter, Folder("base"), Folder("adapter")), OkStatus());
  const auto opened = AdapterFolder::Open(Folder("adapter"));
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const Status said = opened->CheckTrainable(base->spec());
  EXPECT_NE(said.message().find("not finite"), std::string::npos) << said.message();
  EXPECT_EQ(MergeAdapter(*opened, Folder("base"), Folder("merged")), said);
}

TEST_F(AdapterFilesTest, LayersThatAreNotThereAreNotChanged) {
  const auto base = Base("base", 1);
  ASSERT_GT(base->spec().layers, 1);
  const std::string folder = Folder("adapter");
  fs::create_directories(folder);
  const int64_t d = base->spec().hidden_size, q = base->spec().heads * base->spec().head_size;
  const std::vector<float> a(static_cast<size_t>(2 * d), 0.5F), b(static_cast<size_t>(2 * q), 0.25F);
  const std::string module = "base_model.model.model.layers.1.self_attn.q_proj";
  ASSERT_EQ(files::WriteSafetensors(folder + "/" + kAdapterTensorsFile,
                                    {files::SourceOf(module + ".lora_A.weight", files::DType::kF32, {2, d},
                                                     std::as_bytes(std::span(a))),
                                     files::SourceOf(module + ".lora_B.weight", files::DType::kF32, {q, 2},
                                                     std::as_bytes(std::span(b)))}),
            OkStatus());
  std::ofstream(folder + "/" + kAdapterConfigFile)
      << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], "layers_to_transform": [1]})";
  const auto opened = AdapterFolder::Open(folder);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->CheckBase(Folder("base")), OkStatus());
  EXPECT_EQ(opened->CheckFinite(), OkStatus());
  const Status trainable = opened->CheckTrainable(base->spec());
  EXPECT_NE(trainable.message().find("layers.0.self_attn.q_proj"), std::string::npos) << trainable.message();
  std::vector<float> values(static_cast<size_t>(AdapterElements(base->spec(), opened->spec())), 9.0F);
  opened->Read(base->spec(), DType::kFloat32, std::as_writable_bytes(std::span(values)));
  for (const Parameter& p : AdapterLayout(base->spec(), opened->spec())) {
    const float expected = !p.name.starts_with("layers.1.") ? 0.0F : p.name.ends_with(".a") ? 0.5F : 0.25F;
    for (int64_t i = 0; i < p.numel(); ++i)
      ASSERT_EQ(values[static_cast<size_t>(p.offset + i)], expected) << p.name;
  }
  const std::string padded = "base_model.model.model.layers.01.self_attn.q_proj";
  ASSERT_EQ(files::WriteSafetensors(Folder("adapter") + "/padded.safetensors",
                                    {files::SourceOf(padded + ".lora_A.weight", files::DType::kF32, {2, d},
                                                     std::as_bytes(std::span(a))),
                                     files::SourceOf(padded + ".lora_B.weight", files::DType::kF32, {q, 2},
                                                     std::as_bytes(std::span(b)))}),
            OkStatus());
  fs::copy(folder, Folder("named_otherwise"));
  fs::rename(Folder("named_otherwise") + "/padded.safetensors",
             Folder("named_otherwise") + "/" + kAdapterTensorsFile);
  const Status otherwise = AdapterFolder::Open(Folder("named_otherwise")).status();
  EXPECT_EQ(otherwise.code(), StatusCode::kUnimplemented);
  EXPECT_NE(otherwise.message().find("layers.01."), std::string::npos) << otherwise.message();
  std::ofstream(folder + "/" + kAdapterConfigFile)
      << R"({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]})";
  EXPECT_EQ(AdapterFolder::Open(folder).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::model
