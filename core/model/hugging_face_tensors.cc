// Names and shapes of the tensors of a Hugging Face folder, and whether they are there. Reads no values.

#include <string>

#include "core/files/safetensors.h"
#include "core/model/hugging_face.h"

namespace tidepool::model {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool Floating(files::DType t) {
  return t == files::DType::kF32 || t == files::DType::kF16 || t == files::DType::kBF16 ||
         t == files::DType::kF64;
}

Status CheckTensor(const std::string& folder, const HuggingFaceTensor& t,
                   const files::SafetensorsFolder& stored) {
  const auto entry = stored.Find(t.name);
  if (!entry.has_value()) {
    return InvalidArgument(folder + ": the tensor " + t.name + " " + ShapeText(t.shape) +
                           " is missing from the safetensors");
  }
  const std::string where = entry->file->path() + ": " + t.name;
  if (!Floating(entry->info->dtype)) {
    return InvalidArgument(where + ": dtype " + std::string(files::DTypeName(entry->info->dtype)) +
                           ", expected F32, BF16, F16 or F64");
  }
  if (entry->info->shape != t.shape) {
    return InvalidArgument(where + ": shape " + ShapeText(entry->info->shape) + ", expected " +
                           ShapeText(t.shape) + " by config.json");
  }
  return OkStatus();
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& s, ExpertTensors experts) {
  std::vector<HuggingFaceTensor> list;
  const std::vector<Parameter> layout = Layout(s);
  const int64_t d = s.hidden_size, ff = s.intermediate_size, q = s.heads * s.head_size,
                kv = s.kv_heads * s.head_size;
  const int64_t count = s.moe.experts, m = s.moe.intermediate_size, shared = s.moe.shared_intermediate_size;
  for (size_t i = 0; i < layout.size(); ++i) {
    const std::string& name = layout[i].name;
    const auto add = [&](std::string hf, int64_t row, std::vector<int64_t> shape) {
      list.push_back({std::move(hf), static_cast<int64_t>(i), row, std::move(shape)});
    };
    if (name == "embedding") {
      add("model.embed_tokens.weight", 0, layout[i].shape);
      continue;
    }
    if (name == "final_norm") {
      add("model.norm.weight", 0, layout[i].shape);
      continue;
    }
    if (name == "score") {
      add("score.weight", 0, layout[i].shape);
      continue;
    }
    if (name == "head") {
      add("lm_head.weight", 0, layout[i].shape);
      continue;
    }
    const size_t dot = name.rfind('.');
    const std::string layer = "model." + name.substr(0, dot + 1), part = name.substr(dot + 1);
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    if (part == "attention_norm") add(layer + "input_layernorm.weight", 0, {d});
    if (part == "mlp_norm") add(layer + "post_attention_layernorm.weight", 0, {d});
    if (part == "qkv") {
      add(attention + "q_proj.weight", 0, {q, d});
      add(attention + "k_proj.weight", q, {kv, d});
      add(attention + "v_proj.weight", q + kv, {kv, d});
    }
    if (part == "qkv_bias") {
      add(attention + "q_proj.bias", 0, {q});
      add(attention + "k_proj.bias", q, {kv});
      add(attention + "v_proj.bias", q + kv, {kv});
    }
    if (part == "q_norm") add(attention + "q_norm.weight", 0, {s.head_size});
    if (part == "k_norm") add(attention + "k_norm.weight", 0, {s.head_size});
    if (part == "o") add(attention + "o_proj.weight", 0, {d, q});
    if (part == "o_bias") add(attention + "o_proj.bias", 0, {d});
    if (part == "gate_up") {
      add(mlp + "gate_proj.weight", 0, {ff, d});
      add(mlp + "up_proj.weight", ff, {ff, d});
    }
    if (part == "gate_up_bias") {
      add(mlp + "gate_proj.bias", 0, {ff});
      add(mlp + "up_proj.bias", ff, {ff});
    }
    if (part == "down") add(mlp + "down_proj.weight", 0, {d, ff});
    if (part == "down_bias") add(mlp + "down_proj.bias", 0, {d});
    if (part == "router") add(mlp + "gate.weight", 0, {count, d});
    if (part == "shared_gate_up") {
      add(mlp + "shared_expert.gate_proj.weight", 0, {shared, d});
      add(mlp + "shared_expert.up_proj.weight", shared, {shared, d});
    }
    if (part == "shared_down") add(mlp + "shared_expert.down_proj.weight", 0, {d, shared});
    if (part == "shared_gate") add(mlp + "shared_expert_gate.weight", 0, {1, d});
    if (experts == ExpertTensors::kFused) {
      if (part == "experts_gate_up") add(mlp + "experts.gate_up_proj", 0, {count, 2 * m, d});
      if (part == "experts_down") add(mlp + "experts.down_proj", 0, {count, d, m});
      continue;
    }
    for (int64_t e = 0; e < count; ++e) {
      const std::string expert = mlp + "experts." + std::to_string(e) + ".";
      if (part == "experts_gate_up") {
        add(expert + "gate_proj.weight", e * 2 * m, {m, d});
        add(expert + "up_proj.weight", e * 2 * m + m, {m, d});
      }
      if (part == "experts_down") add(expert + "down_proj.weight", e * d, {d, m});
    }
  }
  return list;
}

StatusOr<std::vector<HuggingFaceTensor>> FindTensors(const std::string& folder, const ModelSpec& spec,
                                                     const files::SafetensorsFolder& stored) {
  ExpertTensors experts = ExpertTensors::kOneByOne;
  for (int64_t l = 0; l < spec.layers; ++l) {
    if (!spec.IsSparse(l)) continue;
    const std::string mlp = "model.layers." + std::to_string(l) + ".mlp.experts.";
    if (stored.Find(mlp + "gate_up_proj").has_value()) experts = ExpertTensors::kFused;
    // A config may ask for millions of experts: before they are listed, there must be as many tensors.
    if (experts == ExpertTensors::kOneByOne &&
        spec.sparse_layers() * spec.moe.experts * 3 > static_cast<int64_t>(stored.tensors().size())) {
      const std::string last = mlp + std::to_string(spec.moe.experts - 1);
      return InvalidArgument(folder + ": config.json asks for " + std::to_string(spec.sparse_layers()) +
                             " layers of " + std::to_string(spec.moe.experts) +
                             " experts, but the safetensors have " + std::to_string(stored.tensors().size()) +
                             " tensors in all; one of those up to " + last + ".down_proj.weight is missing");
    }
    break;
  }
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(spec, experts);
  for (const HuggingFaceTensor& t : tensors) TP_RETURN_IF_ERROR(CheckTensor(folder, t, stored));
  return tensors;
}

Status CheckHuggingFace(const std::string& folder) {
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  return FindTensors(folder, spec, *stored).status();
}

}  // namespace tidepool::model
