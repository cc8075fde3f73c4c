// Names and shapes of the tensors of a Hugging Face folder, and whether they are there. Reads no values.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/safetensors.h"
#include "core/model/gguf_folder.h"
#include "core/model/hugging_face.h"

namespace tidepool::model {
namespace {

Status CheckTensor(const std::string& folder, const HuggingFaceTensor& t,
                   const files::SafetensorsFolder& stored) {
  const auto entry = stored.Find(t.name);
  if (!entry.has_value()) {
    return InvalidArgument(folder + ": the tensor " + t.name + " " + files::ShapeText(t.shape) +
                           " is missing from the safetensors");
  }
  const std::string where = entry->file->path() + ": " + t.name;
  if (!files::IsFloating(entry->info->dtype)) {
    return InvalidArgument(where + ": dtype " + std::string(files::DTypeName(entry->info->dtype)) +
                           ", expected F32, BF16, F16 or F64");
  }
  if (entry->info->shape != t.shape) {
    return InvalidArgument(where + ": shape " + files::ShapeText(entry->info->shape) + ", expected " +
                           files::ShapeText(t.shape) + " by config.json");
  }
  return OkStatus();
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& s, ExpertTensors experts) {
  const int64_t d = s.hidden_size, ff = s.intermediate_size, q = s.heads * s.head_size,
                kv = s.kv_heads * s.head_size;
  const int64_t count = s.moe.experts, m = s.moe.intermediate_size, shared = s.moe.shared_intermediate_size;
  // Tensors that stand below one another in a parameter, with their rows; behind "model.layers.N." in a
  // layer.
  struct Stacked {
    const char* name;
    int64_t rows;
  };
  const std::map<std::string_view, std::vector<Stacked>> parts = {
      {"embedding", {{"model.embed_tokens.weight", s.vocab_size}}},
      {"final_norm", {{"model.norm.weight", d}}},
      {"score", {{"score.weight", 1}}},
      {"head", {{"lm_head.weight", s.vocab_size}}},
      {"attention_norm", {{"input_layernorm.weight", d}}},
      {"mlp_norm", {{"post_attention_layernorm.weight", d}}},
      {"qkv",
       {{"self_attn.q_proj.weight", q}, {"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}}},
      {"qkv_bias",
       {{"self_attn.q_proj.bias", q}, {"self_attn.k_proj.bias", kv}, {"self_attn.v_proj.bias", kv}}},
      {"q_norm", {{"self_attn.q_norm.weight", s.head_size}}},
      {"k_norm", {{"self_attn.k_norm.weight", s.head_size}}},
      {"o", {{"self_attn.o_proj.weight", d}}},
      {"o_bias", {{"self_attn.o_proj.bias", d}}},
      {"gate_up", {{"mlp.gate_proj.weight", ff}, {"mlp.up_proj.weight", ff}}},
      {"gate_up_bias", {{"mlp.gate_proj.bias", ff}, {"mlp.up_proj.bias", ff}}},
      {"down", {{"mlp.down_proj.weight", d}}},
      {"down_bias", {{"mlp.down_proj.bias", d}}},
      {"router", {{"mlp.gate.weight", count}}},
      {"shared_gate_up",
       {{"mlp.shared_expert.gate_proj.weight", shared}, {"mlp.shared_expert.up_proj.weight", shared}}},
      {"shared_down", {{"mlp.shared_expert.down_proj.weight", d}}},
      {"shared_gate", {{"mlp.shared_expert_gate.weight", 1}}},
      // of one expert
      {"experts_gate_up", {{"gate_proj.weight", m}, {"up_proj.weight", m}}},
      {"experts_down", {{"down_proj.weight", d}}},
  };
  std::vector<HuggingFaceTensor> list;
  const std::vector<Parameter> layout = Layout(s);
  for (size_t i = 0; i < layout.size(); ++i) {
    const std::string& name = layout[i].name;
    const size_t dot = name.rfind('.');
    const std::string part = name.substr(dot + 1),  // npos + 1 is 0
        layer = dot == std::string::npos ? "" : "model." + name.substr(0, dot + 1);
    int64_t row = 0;
    const auto add_parts = [&](const std::string& prefix) {
      for (const Stacked& t : parts.at(part)) {
        std::vector<int64_t> shape = layout[i].shape;
        shape[0] = t.rows;
        list.push_back({prefix + t.name, static_cast<int64_t>(i), row, std::move(shape)});
        row += t.rows;
      }
    };
    if (!part.starts_with("experts_")) {
      add_parts(layer);
    } else if (experts == ExpertTensors::kFused) {
      const bool down = part == "experts_down";
      list.push_back({layer + (down ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj"),
                      static_cast<int64_t>(i),
                      0,
                      {count, down ? d : 2 * m, down ? m : d}});
    } else {
      for (int64_t e = 0; e < count; ++e) add_parts(layer + "mlp.experts." + std::to_string(e) + ".");
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
  // Fewer layers than there are would be another model, which answers nonsense without a word.
  for (const auto& [name, where] : stored.tensors()) {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) continue;
    const int64_t layer = std::atoll(name.c_str() + kLayers.size());
    if (layer < spec.layers) continue;
    return InvalidArgument(folder + ": config.json says num_hidden_layers " + std::to_string(spec.layers) +
                           ", but the safetensors have " + name + "; correct config.json");
  }
  return tensors;
}

Status CheckHuggingFace(const std::string& folder) {
  if (HoldsGguf(folder)) return GgufFolder::Open(folder).status();
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  return FindTensors(folder, spec, *stored).status();
}

}  // namespace tidepool::model
