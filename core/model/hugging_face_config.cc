// config.json and generation_config.json of Hugging Face model folders, in both dialects:
// transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype).

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/files/mapped_file.h"
#include "core/model/hugging_face.h"
#include "core/model/weights.h"

namespace tidepool::model {
namespace {

using Json = nlohmann::json;
constexpr int64_t kConfigBytesMax = int64_t{16} << 20;

StatusOr<Json> ReadJsonObject(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(path, kConfigBytesMax));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument(path + ": not valid JSON");
  if (!json.is_object()) return InvalidArgument(path + ": a JSON object is expected, found " + json.type_name());
  return json;
}

// Values of one file; a key that is absent or null has the default.
class Reader {
 public:
  Reader(std::string path, const Json& json) : path_(std::move(path)), json_(json) {}

  [[nodiscard]] const Json* Find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  Status Int(const char* key, int64_t fallback, int64_t& out) const {
    out = fallback;
    const Json* v = Find(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_number_integer()) return Wrong(key, "an integer", *v);
    if (v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Wrong(key, "a smaller integer", *v);
    }
    out = v->get<int64_t>();
    return OkStatus();
  }
  Status Number(const char* key, double fallback, double& out) const {
    out = fallback;
    const Json* v = Find(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_number()) return Wrong(key, "a number", *v);
    out = v->get<double>();
    return OkStatus();
  }
  Status Bool(const char* key, bool fallback, bool& out) const {
    out = fallback;
    const Json* v = Find(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_boolean()) return Wrong(key, "true or false", *v);
    out = v->get<bool>();
    return OkStatus();
  }
  Status Text(const char* key, const std::string& fallback, std::string& out) const {
    out = fallback;
    const Json* v = Find(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_string()) return Wrong(key, "a string", *v);
    out = v->get<std::string>();
    return OkStatus();
  }
  [[nodiscard]] Status Wrong(const std::string& key, const std::string& expected, const Json& found) const {
    return InvalidArgument(path_ + ": " + key + ": found " + found.dump().substr(0, 80) + ", expected " + expected);
  }
  [[nodiscard]] Status Missing(const std::string& what) const {
    return Unimplemented(path_ + ": " + what + " is not implemented");
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  const Json& json_;
};

// An id, or a list of ids, or nothing.
Status TokenIds(const Reader& r, const char* key, std::vector<int32_t>& out) {
  out.clear();
  const Json* v = r.Find(key);
  if (v == nullptr) return OkStatus();
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > std::numeric_limits<int32_t>::max()) return false;
    out.push_back(static_cast<int32_t>(id.get<int64_t>()));
    return true;
  };
  if (v->is_array()) {
    for (const Json& id : *v) {
      if (!add(id)) return r.Wrong(key, "token ids", id);
    }
    return OkStatus();
  }
  // transformers writes -1 for "none" in some old folders.
  if (v->is_number_integer() && v->get<int64_t>() == -1) return OkStatus();
  return add(*v) ? OkStatus() : r.Wrong(key, "a token id or a list of them", *v);
}

Status FirstId(const Reader& r, const char* key, int32_t& out) {
  std::vector<int32_t> ids;
  TP_RETURN_IF_ERROR(TokenIds(r, key, ids));
  if (!ids.empty()) out = ids.front();
  return OkStatus();
}

// rope_theta from the three places where it may stand; refuses frequencies that are scaled.
Status ReadRope(const Reader& top, ModelSpec& s) {
  TP_RETURN_IF_ERROR(top.Number("rope_theta", 10000.0, s.rope_theta));
  double partial = 1;
  TP_RETURN_IF_ERROR(top.Number("partial_rotary_factor", 1.0, partial));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* v = top.Find(key);
    if (v == nullptr) continue;
    if (!v->is_object()) return top.Wrong(key, "an object", *v);
    for (const auto& [name, value] : v->items()) {
      if (value.is_object()) return top.Missing(std::string(key) + "." + name + " (rotary parameters by layer type)");
    }
    const Reader inner(top.path() + ": " + key, *v);
    std::string type, old_type;
    TP_RETURN_IF_ERROR(inner.Text("type", "default", old_type));
    TP_RETURN_IF_ERROR(inner.Text("rope_type", old_type, type));
    if (type != "default") return top.Missing(std::string(key) + " of type '" + type + "'");
    TP_RETURN_IF_ERROR(inner.Number("rope_theta", s.rope_theta, s.rope_theta));
    TP_RETURN_IF_ERROR(inner.Number("partial_rotary_factor", partial, partial));
  }
  if (partial != 1) return top.Missing("partial_rotary_factor " + std::to_string(partial));
  return OkStatus();
}

Status RefuseWhatIsMissing(const Reader& r, const ModelSpec& s) {
  std::string act;
  TP_RETURN_IF_ERROR(r.Text("hidden_act", "silu", act));
  if (act != "silu" && act != "swish") return r.Missing("hidden_act '" + act + "' (known: silu)");
  bool on = false;
  TP_RETURN_IF_ERROR(r.Bool("attention_bias", false, on));
  if (on && s.architecture != "qwen2") return r.Missing("attention_bias: true for model_type " + s.architecture);
  TP_RETURN_IF_ERROR(r.Bool("mlp_bias", false, on));
  if (on && s.architecture == "llama") return r.Missing("mlp_bias: true");
  if (s.architecture != "llama") {
    TP_RETURN_IF_ERROR(r.Bool("use_sliding_window", false, on));
    if (on) return r.Missing("use_sliding_window: true");
    if (const Json* types = r.Find("layer_types"); types != nullptr) {
      if (!types->is_array()) return r.Wrong("layer_types", "a list", *types);
      for (const Json& type : *types) {
        if (type != "full_attention") return r.Missing("layer_types " + type.dump());
      }
    }
  }
  if (r.Find("quantization_config") != nullptr) return r.Missing("quantization_config");
  return OkStatus();
}

}  // namespace

StatusOr<ModelSpec> ReadSpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  TP_ASSIGN_OR_RETURN(const Json json, ReadJsonObject(path));
  const Reader r(path, json);
  ModelSpec s;
  TP_RETURN_IF_ERROR(r.Text("model_type", "", s.architecture));
  if (s.architecture.empty()) return InvalidArgument(path + ": model_type is missing; expected llama, qwen2 or qwen3");
  const bool llama = s.architecture == "llama", qwen3 = s.architecture == "qwen3";
  if (!llama && !qwen3 && s.architecture != "qwen2") {
    return r.Missing("model_type '" + s.architecture + "' (known: llama, qwen2, qwen3)");
  }
  // Defaults of LlamaConfig, Qwen2Config and Qwen3Config.
  TP_RETURN_IF_ERROR(r.Int("vocab_size", llama ? 32000 : 151936, s.vocab_size));
  TP_RETURN_IF_ERROR(r.Int("hidden_size", 4096, s.hidden_size));
  TP_RETURN_IF_ERROR(r.Int("intermediate_size", llama ? 11008 : 22016, s.intermediate_size));
  TP_RETURN_IF_ERROR(r.Int("num_hidden_layers", 32, s.layers));
  TP_RETURN_IF_ERROR(r.Int("num_attention_heads", 32, s.heads));
  TP_RETURN_IF_ERROR(r.Int("num_key_value_heads", llama || json.contains("num_key_value_heads") ? s.heads : 32, s.kv_heads));
  TP_RETURN_IF_ERROR(r.Int("max_position_embeddings", llama ? 2048 : 32768, s.max_position));
  TP_RETURN_IF_ERROR(r.Number("rms_norm_eps", 1e-6, s.rms_norm_eps));
  TP_RETURN_IF_ERROR(r.Bool("tie_word_embeddings", false, s.tie_embeddings));
  if (qwen3 && !json.contains("head_dim")) {
    s.head_size = 128;
  } else if (r.Find("head_dim") != nullptr) {
    TP_RETURN_IF_ERROR(r.Int("head_dim", 0, s.head_size));
  } else {
    if (s.heads < 1 || s.hidden_size % s.heads != 0) {
      return InvalidArgument(path + ": hidden_size " + std::to_string(s.hidden_size) + " is not a multiple of num_attention_heads " +
                             std::to_string(s.heads) + ", and there is no head_dim");
    }
    s.head_size = s.hidden_size / s.heads;
  }
  s.qkv_bias = s.architecture == "qwen2";
  s.qk_norm = qwen3;
  TP_RETURN_IF_ERROR(ReadRope(r, s));
  TP_RETURN_IF_ERROR(RefuseWhatIsMissing(r, s));
  if (const Status ok = CheckSpec(s); !ok.ok()) return ok.At(path);

  if (llama) s.bos_token_id = 1, s.eos_token_ids = {2};
  TP_RETURN_IF_ERROR(FirstId(r, "bos_token_id", s.bos_token_id));
  TP_RETURN_IF_ERROR(FirstId(r, "pad_token_id", s.pad_token_id));
  if (json.contains("eos_token_id")) TP_RETURN_IF_ERROR(TokenIds(r, "eos_token_id", s.eos_token_ids));
  // generation_config.json has the last word on end tokens, where it is there.
  const std::string generation_path = folder + "/generation_config.json";
  const StatusOr<Json> generation = ReadJsonObject(generation_path);
  if (!generation.ok()) return generation.status().code() == StatusCode::kNotFound ? StatusOr<ModelSpec>(s) : generation.status();
  const Reader g(generation_path, *generation);
  std::vector<int32_t> ends;
  TP_RETURN_IF_ERROR(TokenIds(g, "eos_token_id", ends));
  if (!ends.empty()) s.eos_token_ids = ends;
  TP_RETURN_IF_ERROR(FirstId(g, "bos_token_id", s.bos_token_id));
  TP_RETURN_IF_ERROR(FirstId(g, "pad_token_id", s.pad_token_id));
  return s;
}

Status WriteConfigFiles(const ModelSpec& s, DType dtype, const std::string& folder) {
  using Ordered = nlohmann::ordered_json;
  Ordered c, g;
  const auto ends = [&]() -> Ordered {
    if (s.eos_token_ids.empty()) return nullptr;
    if (s.eos_token_ids.size() == 1) return s.eos_token_ids.front();
    return s.eos_token_ids;
  };
  const auto id = [](int32_t v) -> Ordered { return v < 0 ? Ordered(nullptr) : Ordered(v); };
  c["architectures"] = {s.architecture == "llama" ? "LlamaForCausalLM" : s.architecture == "qwen2" ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM"};
  if (s.architecture != "qwen2") c["attention_bias"] = false;
  c["attention_dropout"] = 0.0;
  c["bos_token_id"] = id(s.bos_token_id);
  c["eos_token_id"] = ends();
  c["head_dim"] = s.head_size;
  c["hidden_act"] = "silu";
  c["hidden_size"] = s.hidden_size;
  c["initializer_range"] = 0.02;
  c["intermediate_size"] = s.intermediate_size;
  c["max_position_embeddings"] = s.max_position;
  if (s.architecture == "llama") c["mlp_bias"] = false;
  c["model_type"] = s.architecture;
  c["num_attention_heads"] = s.heads;
  c["num_hidden_layers"] = s.layers;
  c["num_key_value_heads"] = s.kv_heads;
  c["pad_token_id"] = id(s.pad_token_id);
  c["rms_norm_eps"] = s.rms_norm_eps;
  c["rope_scaling"] = nullptr;
  c["rope_theta"] = s.rope_theta;
  c["tie_word_embeddings"] = s.tie_embeddings;
  c["torch_dtype"] = dtype == DType::kFloat32 ? "float32" : "bfloat16";
  c["use_cache"] = true;
  if (s.architecture != "llama") c["use_sliding_window"] = false;
  c["vocab_size"] = s.vocab_size;
  g["_from_model_config"] = true;
  g["bos_token_id"] = id(s.bos_token_id);
  g["eos_token_id"] = ends();
  if (s.pad_token_id >= 0) g["pad_token_id"] = s.pad_token_id;
  TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/config.json", c.dump(2) + "\n"));
  return files::WriteSmallFile(folder + "/generation_config.json", g.dump(2) + "\n");
}

}  // namespace tidepool::model
