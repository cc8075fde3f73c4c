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
  if (file.Int(key("expert_count")).value_or(0) > 0) {
    return Unimplemented(file.path() + ": is a mixture of experts; dense models can be imported");
  }

  bool tied = true;
  bool bias = false;
  int64_t vocabulary = 0;
  for (const GgufHuggingFaceTensor& tensor : tensors) {
    if (tensor.name == "lm_head.weight") tied = false;
    if (tensor.name.ends_with("_proj.bias")) bias = true;
    if (tensor.name == "model.embed_tokens.weight") vocabulary = tensor.tensor->rows();
  }
  if (bias != (architecture == "qwen2")) {
    return Unimplemented(file.path() + ": biases of q, k and v are " + (bias ? "there" : "missing") +
                         ", which " + architecture + " models as known here do not have so");
  }

  const std::string class_name = architecture == "llama"   ? "LlamaForCausalLM"
                                 : architecture == "qwen2" ? "Qwen2ForCausalLM"
                                                           : "Qwen3ForCausalLM";
  Json config;
  config["architectures"] = {class_name};
  config["model_type"] = architecture;
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
  if (architecture != "qwen2") config["attention_bias"] = false;
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
  return {named.name, dtype, named.tensor->shape(), [named, dtype](const WriteBytes& write) -> Status {
            std::vector<float> values(static_cast<size_t>(named.tensor->numel()));
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
  if (error) return SystemError(out_folder, "cannot make the folder", error.value());

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
