#include "core/files/gguf_import.h"

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files/float_formats.h"

namespace tidepool::files {
namespace {

using Json = nlohmann::ordered_json;

// GGUF keeps such numbers as float32: 1e-05 became 9.99999975e-06. The shortest decimal with the same
// float32 is what the checkpoint's config said.
double Shortest(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), static_cast<float>(value)).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

StatusOr<Json> Config(const GgufFile& file, const std::vector<GgufHuggingFaceTensor>& tensors, DType dtype) {
  const std::string architecture(*file.String("general.architecture"));
  const auto key = [&](const char* name) { return architecture + "." + name; };
  const auto need = [&](const char* name) -> StatusOr<int64_t> {
    const std::optional<int64_t> value = file.Int(key(name));
    if (!value || *value < 1) {
      return InvalidArgument(file.path() + ": " + key(name) + " is missing or no positive integer");
    }
    return *value;
  };
  TP_ASSIGN_OR_RETURN(const int64_t hidden, need("embedding_length"));
  TP_ASSIGN_OR_RETURN(const int64_t intermediate, need("feed_forward_length"));
  TP_ASSIGN_OR_RETURN(const int64_t layers, need("block_count"));
  TP_ASSIGN_OR_RETURN(const int64_t heads, need("attention.head_count"));
  TP_ASSIGN_OR_RETURN(const int64_t context, need("context_length"));
  const int64_t kv_heads = file.Int(key("attention.head_count_kv")).value_or(heads);
  const int64_t head_size = file.Int(key("attention.key_length")).value_or(hidden / heads);
  const std::optional<double> epsilon = file.Float(key("attention.layer_norm_rms_epsilon"));
  if (!epsilon)
    return InvalidArgument(file.path() + ": " + key("attention.layer_norm_rms_epsilon") + " is missing");

  Json rope_scaling = nullptr;
  const std::string scaling(file.String(key("rope.scaling.type")).value_or("none"));
  if (scaling == "linear") {
    rope_scaling = {{"rope_type", "linear"},
                    {"factor", Shortest(file.Float(key("rope.scaling.factor")).value_or(1.0))}};
  } else if (scaling != "none") {
    return Unimplemented(file.path() + ": " + key("rope.scaling.type") + " is " + scaling +
                         "; none and linear can be imported");
  }
  if (const int64_t rotated = file.Int(key("rope.dimension_count")).value_or(head_size);
      rotated != head_size) {
    return Unimplemented(file.path() + ": rotary positions on " + std::to_string(rotated) + " of " +
                         std::to_string(head_size) +
                         " dimensions of a head; only whole heads can be imported");
  }
  const bool sparse = architecture == "qwen2moe" || architecture == "qwen3moe";
  if (!sparse && file.Int(key("expert_count")).value_or(0) > 0) {
    return Unimplemented(file.path() + ": is a mixture of experts of the architecture " + architecture +
                         "; qwen2moe and qwen3moe can be imported");
  }

  bool tied = true;
  bool bias = false;
  int64_t vocabulary = 0, expert_width = 0, shared_width = 0;
  for (const GgufHuggingFaceTensor& tensor : tensors) {
    if (tensor.name == "lm_head.weight") tied = false;
    if (tensor.name.ends_with("_proj.bias")) bias = true;
    if (tensor.name == "model.embed_tokens.weight") vocabulary = tensor.tensor->rows();
    if (tensor.name == "model.layers.0.mlp.experts.0.gate_proj.weight") expert_width = tensor.shape[0];
    if (tensor.name == "model.layers.0.mlp.shared_expert.gate_proj.weight") shared_width = tensor.shape[0];
  }
  if (bias != (architecture == "qwen2" || architecture == "qwen2moe")) {
    return Unimplemented(file.path() + ": biases of q, k and v are " + (bias ? "there" : "missing") +
                         ", which " + architecture + " models as known here do not have so");
  }

  const std::string class_name = architecture == "llama"      ? "LlamaForCausalLM"
                                 : architecture == "qwen2"    ? "Qwen2ForCausalLM"
                                 : architecture == "qwen3"    ? "Qwen3ForCausalLM"
                                 : architecture == "qwen2moe" ? "Qwen2MoeForCausalLM"
                                                              : "Qwen3MoeForCausalLM";
  Json config;
  config["architectures"] = {class_name};
  config["model_type"] = !sparse ? architecture : architecture == "qwen2moe" ? "qwen2_moe" : "qwen3_moe";
  config["vocab_size"] = vocabulary;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = intermediate;
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = kv_heads;
  config["head_dim"] = head_size;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = context;
  config["rms_norm_eps"] = Shortest(*epsilon);
  config["rope_theta"] = Shortest(file.Float(key("rope.freq_base")).value_or(10000.0));
  config["rope_scaling"] = rope_scaling;
  config["tie_word_embeddings"] = tied;
  if (sparse) {
    TP_ASSIGN_OR_RETURN(const int64_t experts, need("expert_count"));
    TP_ASSIGN_OR_RETURN(const int64_t used, need("expert_used_count"));
    config["num_experts"] = experts;
    config["num_experts_per_tok"] = used;
    config["moe_intermediate_size"] = expert_width;
    if (shared_width > 0) config["shared_expert_intermediate_size"] = shared_width;
    // Not in the metadata; llama.cpp computes the one with normalised weights and the other without, as the
    // published models.
    config["norm_topk_prob"] = architecture == "qwen3moe";
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = Json::array();
    config["router_aux_loss_coef"] = 0.001;
  }
  if (architecture != "qwen2" && architecture != "qwen2moe") config["attention_bias"] = false;
  if (architecture == "llama") config["mlp_bias"] = false;
  if (architecture != "llama") config["use_sliding_window"] = false;
  config["attention_dropout"] = 0.0;
  config["initializer_range"] = 0.02;
  config["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : "float32";
  config["use_cache"] = true;
  for (const auto& [name, gguf] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                   std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                   std::pair{"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
    if (const std::optional<int64_t> id = file.Int(gguf)) config[name] = *id;
  }
  return config;
}

// A source that converts the tensor when it is written, so that one tensor at a time lies in memory.
TensorSource Convert(const GgufHuggingFaceTensor& named, DType dtype) {
  return {named.name, dtype, named.shape, [named, dtype](const WriteBytes& write) -> Status {
            std::vector<float> values(static_cast<size_t>(named.numel()));
            TP_RETURN_IF_ERROR(ReadHuggingFaceTensor(named, values));
            if (dtype == DType::kF32) return write(std::as_bytes(std::span(values)));
            std::vector<uint16_t> rounded(values.size());
            FloatsToBf16(values, rounded);
            return write(std::as_bytes(std::span(rounded)));
          }};
}

}  // namespace

Status ImportGguf(const std::string& path, const std::string& out_folder, DType dtype) {
  if (dtype != DType::kBF16 && dtype != DType::kF32) {
    return InvalidArgument("a GGUF file is imported as BF16 or F32, not as " + std::string(DTypeName(dtype)));
  }
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  TP_ASSIGN_OR_RETURN(const std::vector<GgufHuggingFaceTensor> tensors, HuggingFaceTensors(*file));
  TP_ASSIGN_OR_RETURN(const Json config, Config(*file, tensors, dtype));

  std::error_code error;
  std::filesystem::create_directories(out_folder, error);
  if (error) return FileError(error.value(), "create folder", out_folder);

  // The tokenizer first: it is what is most often refused, and nothing large is written by then.
  TP_RETURN_IF_ERROR(WriteGgufTokenizer(*file, out_folder));
  std::vector<TensorSource> sources;
  for (const GgufHuggingFaceTensor& tensor : tensors) sources.push_back(Convert(tensor, dtype));
  TP_RETURN_IF_ERROR(WriteSafetensors(out_folder + "/model.safetensors", sources));

  Json generation;
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(name)) generation[name] = config[name];
  }
  generation["_from_model_config"] = true;
  TP_RETURN_IF_ERROR(WriteSmallFile(out_folder + "/generation_config.json", generation.dump(2) + "\n"));
  // Last: a folder without config.json is not taken for a model.
  return WriteSmallFile(out_folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace tidepool::files
