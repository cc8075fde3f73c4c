#include "core/model/gguf_import.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "core/files/float_formats.h"
#include "core/files/gguf_hugging_face.h"
#include "core/model/gguf_folder.h"
#include "core/model/hugging_face.h"

namespace tidepool::model {
namespace {

// GGUF keeps such numbers as float32: 1e-05 became 9.99999975e-06. The shortest decimal with the same
// float32 is what the checkpoint's config said.
double Shortest(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), static_cast<float>(value)).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

// "qwen2moe" here is "qwen2_moe" there; the other names are the same.
std::string ModelType(const std::string& architecture) {
  return architecture.ends_with("moe") ? architecture.substr(0, architecture.size() - 3) + "_moe"
                                       : architecture;
}

StatusOr<ModelSpec> SpecOf(const files::GgufFile& file,
                           const std::vector<files::GgufHuggingFaceTensor>& tensors) {
  const std::string architecture(*file.String("general.architecture"));
  const auto key = [&](const char* name) { return architecture + "." + name; };
  const auto need = [&](const char* name) -> StatusOr<int64_t> {
    const std::optional<int64_t> value = file.Int(key(name));
    if (!value || *value < 1) {
      return InvalidArgument(file.path() + ": " + key(name) + " is missing or no positive integer");
    }
    return *value;
  };
  ModelSpec s;
  s.architecture = ModelType(architecture);
  TP_ASSIGN_OR_RETURN(s.hidden_size, need("embedding_length"));
  TP_ASSIGN_OR_RETURN(s.intermediate_size, need("feed_forward_length"));
  TP_ASSIGN_OR_RETURN(s.layers, need("block_count"));
  TP_ASSIGN_OR_RETURN(s.heads, need("attention.head_count"));
  TP_ASSIGN_OR_RETURN(s.max_position, need("context_length"));
  s.kv_heads = file.Int(key("attention.head_count_kv")).value_or(s.heads);
  s.head_size = file.Int(key("attention.key_length")).value_or(s.hidden_size / s.heads);
  const std::optional<double> epsilon = file.Float(key("attention.layer_norm_rms_epsilon"));
  if (!epsilon)
    return InvalidArgument(file.path() + ": " + key("attention.layer_norm_rms_epsilon") + " is missing");
  s.rms_norm_eps = Shortest(*epsilon);
  s.rope_theta = Shortest(file.Float(key("rope.freq_base")).value_or(10000.0));
  const std::string scaling(file.String(key("rope.scaling.type")).value_or("none"));
  if (scaling == "linear") {
    s.rope = {.type = RopeType::kLinear,
              .factor = Shortest(file.Float(key("rope.scaling.factor")).value_or(1.0))};
  } else if (scaling != "none") {
    return Unimplemented(file.path() + ": " + key("rope.scaling.type") + " is " + scaling +
                         "; none and linear can be imported");
  }
  if (const int64_t rotated = file.Int(key("rope.dimension_count")).value_or(s.head_size);
      rotated != s.head_size) {
    return Unimplemented(file.path() + ": rotary positions on " + std::to_string(rotated) + " of " +
                         std::to_string(s.head_size) +
                         " dimensions of a head; only whole heads can be imported");
  }
  const bool sparse = architecture.ends_with("moe");
  if (!sparse && file.Int(key("expert_count")).value_or(0) > 0) {
    return Unimplemented(file.path() + ": is a mixture of experts of the architecture " + architecture +
                         "; qwen2moe and qwen3moe can be imported");
  }

  s.tie_embeddings = true;
  bool bias = false;
  for (const files::GgufHuggingFaceTensor& tensor : tensors) {
    if (tensor.name == "lm_head.weight") s.tie_embeddings = false;
    if (tensor.name.ends_with("_proj.bias")) bias = true;
    if (tensor.name == "model.embed_tokens.weight") s.vocab_size = tensor.tensor->rows();
    if (tensor.name == "model.layers.0.mlp.experts.0.gate_proj.weight")
      s.moe.intermediate_size = tensor.shape[0];
    if (tensor.name == "model.layers.0.mlp.shared_expert.gate_proj.weight")
      s.moe.shared_intermediate_size = tensor.shape[0];
  }
  const bool biased = architecture == "qwen2" || architecture == "qwen2moe";
  if (bias != biased) {
    return Unimplemented(file.path() + ": biases of q, k and v are " + (bias ? "there" : "missing") +
                         ", which " + architecture + " models as known here do not have so");
  }
  s.qkv_bias = architecture == "qwen2moe";  // a key of its config.json; qwen2 has them without one
  if (sparse) {
    TP_ASSIGN_OR_RETURN(s.moe.experts, need("expert_count"));
    TP_ASSIGN_OR_RETURN(s.moe.experts_per_token, need("expert_used_count"));
    // Not in the metadata; llama.cpp computes the one with normalised weights and the other without, as the
    // published models.
    s.moe.renormalize = architecture == "qwen3moe";
  }
  const auto token = [&](const char* name) {
    const int64_t id = file.Int(name).value_or(-1);
    return id <= INT32_MAX ? static_cast<int32_t>(std::max<int64_t>(id, -1)) : -1;
  };
  s.bos_token_id = token("tokenizer.ggml.bos_token_id");
  s.pad_token_id = token("tokenizer.ggml.padding_token_id");
  if (const int32_t end = token("tokenizer.ggml.eos_token_id"); end >= 0)
    s.eos_token_ids = {end};
  else if (s.architecture == "llama")
    s.eos_token_ids = {2};  // what its config.json means where it names none
  return s;
}

// A source that converts the tensor when it is written, so that one tensor at a time lies in memory.
files::TensorSource Convert(const files::GgufHuggingFaceTensor& named, files::DType dtype) {
  return {named.name, dtype, named.shape, [named, dtype](const files::WriteBytes& write) -> Status {
            std::vector<float> values(static_cast<size_t>(named.numel()));
            TP_RETURN_IF_ERROR(files::ReadHuggingFaceTensor(named, values));
            if (dtype == files::DType::kF32) return write(std::as_bytes(std::span(values)));
            std::vector<uint16_t> rounded(values.size());
            files::FloatsToBf16(values, rounded);
            return write(std::as_bytes(std::span(rounded)));
          }};
}

}  // namespace

namespace {

// All but the weights, which `write` writes before config.json: a folder without that is not taken for a
// model.
Status Import(const std::string& path, const std::string& out_folder, DType dtype,
              const std::function<Status(const std::vector<files::GgufHuggingFaceTensor>&)>& write) {
  TP_ASSIGN_OR_RETURN(const auto file, files::GgufFile::Open(path));
  TP_ASSIGN_OR_RETURN(const auto tensors, files::HuggingFaceTensors(*file));
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(*file, tensors));

  std::error_code error;
  std::filesystem::create_directories(out_folder, error);
  if (error) return FileError(error.value(), "create folder", out_folder);

  // The tokenizer first: it is what is most often refused, and nothing large is written by then.
  TP_RETURN_IF_ERROR(files::WriteGgufTokenizer(*file, out_folder));
  TP_RETURN_IF_ERROR(write(tensors));
  return WriteConfigFiles(spec, dtype, out_folder);
}

}  // namespace

Status ImportGguf(const std::string& path, const std::string& out_folder, DType dtype) {
  return Import(path, out_folder, dtype, [&](const std::vector<files::GgufHuggingFaceTensor>& tensors) {
    const files::DType stored = dtype == DType::kFloat32 ? files::DType::kF32 : files::DType::kBF16;
    std::vector<files::TensorSource> sources;
    for (const files::GgufHuggingFaceTensor& tensor : tensors) sources.push_back(Convert(tensor, stored));
    return files::WriteSafetensors(out_folder + "/model.safetensors", sources);
  });
}

Status ImportGgufBlocks(const std::string& path, const std::string& out_folder) {
  namespace fs = std::filesystem;
  return Import(path, out_folder, DType::kBFloat16,
                [&](const std::vector<files::GgufHuggingFaceTensor>& tensors) -> Status {
                  for (const files::GgufHuggingFaceTensor& tensor : tensors) {
                    // What has a type that cannot be read is refused here.
                    std::vector<float> row(static_cast<size_t>(tensor.tensor->ne[0]));
                    TP_RETURN_IF_ERROR(files::Dequantize(*tensor.tensor, 0, row));
                  }
                  const std::string to = out_folder + "/" + kGgufFile;
                  std::error_code error;
                  if (fs::equivalent(path, to, error)) return OkStatus();
                  fs::remove(to, error);
                  fs::create_hard_link(fs::canonical(path, error), to, error);
                  if (error) fs::copy_file(path, to, error);
                  return error ? FileError(error.value(), "write", to) : OkStatus();
                });
}

}  // namespace tidepool::model
