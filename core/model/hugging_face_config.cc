// config.json and generation_config.json of Hugging Face model folders, in both dialects:
// transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype).

#include <nlohmann/json.hpp>
#include <string>

#include "core/files/mapped_file.h"
#include "core/model/config_reader.h"
#include "core/model/families/family.h"
#include "core/model/hugging_face.h"

namespace tidepool::model {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::string_view kCausal = "ForCausalLM", kSequenceClassification = "ForSequenceClassification";

Ordered ScalingJson(const RopeSpec& r) {
  switch (r.type) {
    case RopeType::kDefault:
      return nullptr;
    case RopeType::kLinear:
      return {{"factor", r.factor}, {"rope_type", "linear"}};
    case RopeType::kLlama3:
      return {{"factor", r.factor},
              {"high_freq_factor", r.high_frequency_factor},
              {"low_freq_factor", r.low_frequency_factor},
              {"original_max_position_embeddings", static_cast<int64_t>(r.original_max_position)},
              {"rope_type", "llama3"}};
    case RopeType::kYarn:
      break;
  }
  return {{"attention_factor", r.attention_factor},
          {"beta_fast", r.beta_fast},
          {"beta_slow", r.beta_slow},
          {"factor", r.factor},
          {"original_max_position_embeddings", static_cast<int64_t>(r.original_max_position)},
          {"rope_type", "yarn"},
          {"truncate", r.truncate}};
}

}  // namespace

StatusOr<ModelSpec> ReadSpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  TP_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(path));
  const ConfigReader r(path, json);
  ModelSpec s;
  TP_RETURN_IF_ERROR(r.Text("model_type", "", s.architecture));
  if (s.architecture.empty())
    return InvalidArgument(path + ": model_type is missing; expected one of " + FamilyNames());
  const Family* family = FindFamily(s.architecture);
  if (family == nullptr)
    return r.Missing("model_type '" + s.architecture + "' (known: " + FamilyNames() + ")");
  TP_RETURN_IF_ERROR(family->read(r, s));
  if (const auto kinds = json.find("architectures");
      kinds != json.end() && kinds->is_array() && !kinds->empty() && kinds->front().is_string()) {
    s.value_head = kinds->front().get<std::string>().ends_with(kSequenceClassification);
  }
  if (const Status ok = CheckSpec(s); !ok.ok()) return ok.At(path);

  TP_RETURN_IF_ERROR(r.FirstTokenId("bos_token_id", s.bos_token_id));
  TP_RETURN_IF_ERROR(r.FirstTokenId("pad_token_id", s.pad_token_id));
  if (r.Has("eos_token_id")) TP_RETURN_IF_ERROR(r.TokenIds("eos_token_id", s.eos_token_ids));
  // generation_config.json has the last word on end tokens, where it is there.
  const std::string generation_path = folder + "/generation_config.json";
  const StatusOr<nlohmann::json> generation = ReadJsonObject(generation_path);
  if (!generation.ok())
    return generation.status().code() == StatusCode::kNotFound ? StatusOr<ModelSpec>(s) : generation.status();
  const ConfigReader g(generation_path, *generation);
  std::vector<int32_t> ends;
  TP_RETURN_IF_ERROR(g.TokenIds("eos_token_id", ends));
  if (!ends.empty()) s.eos_token_ids = ends;
  TP_RETURN_IF_ERROR(g.FirstTokenId("bos_token_id", s.bos_token_id));
  TP_RETURN_IF_ERROR(g.FirstTokenId("pad_token_id", s.pad_token_id));
  return s;
}

void NameAsRewardModel(nlohmann::ordered_json& config) {
  auto& kinds = config["architectures"];
  std::string kind = kinds.is_array() && !kinds.empty() && kinds.front().is_string()
                         ? kinds.front().get<std::string>()
                         : std::string();
  if (kind.empty()) {
    const Family* family = FindFamily(config.value("model_type", ""));
    if (family != nullptr) kind = family->architecture;
  }
  if (kind.ends_with(kCausal))
    kind = kind.substr(0, kind.size() - kCausal.size()) + std::string(kSequenceClassification);
  kinds = {kind};
  config["id2label"] = {{"0", "LABEL_0"}};
  config["label2id"] = {{"LABEL_0", 0}};
}

Status WriteConfigFiles(const ModelSpec& s, DType dtype, const std::string& folder) {
  const Family* family = FindFamily(s.architecture);
  if (family == nullptr)
    return Unimplemented("model: architecture '" + s.architecture + "' is not one of " + FamilyNames());
  Ordered c, g;
  const auto ends = [&]() -> Ordered {
    if (s.eos_token_ids.empty()) return nullptr;
    if (s.eos_token_ids.size() == 1) return s.eos_token_ids.front();
    return s.eos_token_ids;
  };
  const auto id = [](int32_t v) -> Ordered { return v < 0 ? Ordered(nullptr) : Ordered(v); };
  const std::string kind(family->architecture);
  c["architectures"] = {kind};
  c["attention_dropout"] = 0.0;
  c["bos_token_id"] = id(s.bos_token_id);
  c["eos_token_id"] = ends();
  c["head_dim"] = s.head_size;
  c["hidden_act"] = "silu";
  c["hidden_size"] = s.hidden_size;
  c["initializer_range"] = 0.02;
  c["intermediate_size"] = s.intermediate_size;
  c["max_position_embeddings"] = s.max_position;
  c["model_type"] = s.architecture;
  c["num_attention_heads"] = s.heads;
  c["num_hidden_layers"] = s.layers;
  c["num_key_value_heads"] = s.kv_heads;
  c["pad_token_id"] = id(s.pad_token_id);
  c["rms_norm_eps"] = s.rms_norm_eps;
  c["rope_scaling"] = ScalingJson(s.rope);
  c["rope_theta"] = s.rope_theta;
  c["tie_word_embeddings"] = s.tie_embeddings;
  c["torch_dtype"] = dtype == DType::kFloat32 ? "float32" : "bfloat16";
  c["use_cache"] = true;
  c["vocab_size"] = s.vocab_size;
  if (s.value_head) NameAsRewardModel(c);
  family->write(s, c);
  g["_from_model_config"] = true;
  g["bos_token_id"] = id(s.bos_token_id);
  g["eos_token_id"] = ends();
  if (s.pad_token_id >= 0) g["pad_token_id"] = s.pad_token_id;
  TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/generation_config.json", g.dump(2) + "\n"));
  return files::WriteSmallFile(folder + "/config.json", c.dump(2) + "\n");
}

}  // namespace tidepool::model
