// Names and row order: GGUF's and Hugging Face's.

#include "core/files/gguf_hugging_face.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace tidepool::files {
namespace {

struct BlockName {
  const char* gguf;
  const char* hugging_face;
  enum { kNever, kQueryHeads, kKeyHeads } permuted;  // in llama models
  bool required;
};
// In module order; biases and q/k norms are there in some architectures only.
constexpr BlockName kBlock[] = {
    {"attn_norm.weight", "input_layernorm.weight", BlockName::kNever, true},
    {"attn_q.weight", "self_attn.q_proj.weight", BlockName::kQueryHeads, true},
    {"attn_q.bias", "self_attn.q_proj.bias", BlockName::kQueryHeads, false},
    {"attn_k.weight", "self_attn.k_proj.weight", BlockName::kKeyHeads, true},
    {"attn_k.bias", "self_attn.k_proj.bias", BlockName::kKeyHeads, false},
    {"attn_v.weight", "self_attn.v_proj.weight", BlockName::kNever, true},
    {"attn_v.bias", "self_attn.v_proj.bias", BlockName::kNever, false},
    {"attn_output.weight", "self_attn.o_proj.weight", BlockName::kNever, true},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", BlockName::kNever, false},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", BlockName::kNever, false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", BlockName::kNever, true},
};
constexpr BlockName kDense[] = {
    {"ffn_gate.weight", "mlp.gate_proj.weight", BlockName::kNever, true},
    {"ffn_up.weight", "mlp.up_proj.weight", BlockName::kNever, true},
    {"ffn_down.weight", "mlp.down_proj.weight", BlockName::kNever, true},
};
constexpr BlockName kRouter = {"ffn_gate_inp.weight", "mlp.gate.weight", BlockName::kNever, true};
// All experts of a layer in one tensor [expert, row, column], and one by one in the checkpoint.
constexpr std::pair<const char*, const char*> kExperts[] = {{"ffn_gate_exps.weight", "gate_proj.weight"},
                                                            {"ffn_up_exps.weight", "up_proj.weight"},
                                                            {"ffn_down_exps.weight", "down_proj.weight"}};
constexpr BlockName kShared[] = {
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", BlockName::kNever, true},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", BlockName::kNever, true},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", BlockName::kNever, true},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", BlockName::kNever, true},
};

}  // namespace

StatusOr<std::vector<GgufHuggingFaceTensor>> HuggingFaceTensors(const GgufFile& file) {
  const std::string architecture(file.String("general.architecture").value_or("(none)"));
  const bool sparse = architecture == "qwen2moe" || architecture == "qwen3moe";
  if (!sparse && architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    return Unimplemented(file.path() + ": general.architecture is " + architecture +
                         "; llama, qwen2, qwen3, qwen2moe and qwen3moe can be imported");
  }
  const int64_t blocks = file.Int(architecture + ".block_count").value_or(0);
  const int64_t heads = file.Int(architecture + ".attention.head_count").value_or(0);
  const int64_t kv_heads = file.Int(architecture + ".attention.head_count_kv").value_or(heads);
  if (blocks < 1 || blocks > 10'000 || heads < 1 || kv_heads < 1) {
    return InvalidArgument(file.path() + ": " + architecture +
                           ".block_count, .attention.head_count or .attention.head_count_kv is missing or no "
                           "positive number for the whole model");
  }
  const bool permuted = architecture == "llama";

  std::vector<GgufHuggingFaceTensor> result;
  std::set<std::string_view> used;
  Status status = OkStatus();
  const auto take = [&](const std::string& gguf, std::string name, int64_t head_count, bool required) {
    const GgufTensor* tensor = file.Find(gguf);
    if (tensor == nullptr) {
      if (required && status.ok()) {
        status = InvalidArgument(file.path() + ": the tensor \"" + gguf + "\" is missing");
      }
      return;
    }
    const int64_t rows = tensor->ne.size() == 1 ? tensor->ne[0] : tensor->ne[1];
    if (head_count > 0 && rows % (2 * head_count) != 0 && status.ok()) {
      status =
          InvalidArgument(file.path() + ": the tensor \"" + gguf + "\" has " + std::to_string(rows) +
                          " rows, no multiple of two for each of " + std::to_string(head_count) + " heads");
    }
    used.insert(tensor->name);
    std::vector<int64_t> shape = tensor->shape();
    // A matrix of one row is kept as a vector.
    if (name.ends_with("shared_expert_gate.weight") && shape.size() == 1) shape.insert(shape.begin(), 1);
    result.push_back({std::move(name), tensor, head_count, 0, std::move(shape)});
  };
  const int64_t experts = file.Int(architecture + ".expert_count").value_or(0);
  const auto take_experts = [&](const std::string& gguf, const std::string& prefix, const char* suffix) {
    const GgufTensor* tensor = file.Find(gguf);
    if (tensor == nullptr || tensor->ne.size() != 3 || tensor->ne[2] != experts) {
      if (status.ok()) {
        status = InvalidArgument(file.path() + ": the tensor \"" + gguf +
                                 "\" is missing, or is not one matrix for each of " +
                                 std::to_string(experts) + " experts");
      }
      return;
    }
    used.insert(tensor->name);
    for (int64_t e = 0; e < experts; ++e) {
      result.push_back({prefix + std::to_string(e) + "." + suffix,
                        tensor,
                        0,
                        e * tensor->ne[1],
                        {tensor->ne[1], tensor->ne[0]}});
    }
  };
  take("token_embd.weight", "model.embed_tokens.weight", 0, true);
  for (int64_t block = 0; block < blocks && status.ok(); ++block) {
    const std::string from = "blk." + std::to_string(block) + ".",
                      to = "model.layers." + std::to_string(block) + ".";
    for (const BlockName& part : kBlock) {
      const int64_t head_count = !permuted || part.permuted == BlockName::kNever ? 0
                                 : part.permuted == BlockName::kQueryHeads       ? heads
                                                                                 : kv_heads;
      take(from + part.gguf, to + part.hugging_face, head_count, part.required);
    }
    if (!sparse) {
      for (const BlockName& part : kDense) take(from + part.gguf, to + part.hugging_face, 0, part.required);
      continue;
    }
    take(from + kRouter.gguf, to + kRouter.hugging_face, 0, true);
    for (const auto& [gguf, name] : kExperts) take_experts(from + gguf, to + "mlp.experts.", name);
    if (architecture == "qwen3moe") continue;
    for (const BlockName& part : kShared) take(from + part.gguf, to + part.hugging_face, 0, part.required);
  }
  take("output_norm.weight", "model.norm.weight", 0, true);
  take("output.weight", "lm_head.weight", 0, false);
  TP_RETURN_IF_ERROR(status);
  for (const GgufTensor& tensor : file.tensors()) {
    if (!used.contains(tensor.name)) {
      return Unimplemented(file.path() + ": the tensor \"" + std::string(tensor.name) +
                           "\" has no place in a " + architecture +
                           " model as known here; leaving it out would give wrong numbers");
    }
  }
  return result;
}

int64_t GgufHuggingFaceTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Status ReadHuggingFaceTensor(const GgufHuggingFaceTensor& named, std::span<float> out) {
  const GgufTensor& tensor = *named.tensor;
  TP_CHECK(static_cast<int64_t>(out.size()) == named.numel()) << out.size() << " for " << named.numel();
  if (named.heads == 0) return Dequantize(tensor, named.first_row, out);

  // The converter stored row h D + 2 i + j where the checkpoint has row h D + j D/2 + i, with j in
  // {0, 1} and D the head's size. A bias has one value a row.
  const bool bias = tensor.ne.size() == 1;
  const int64_t width = bias ? 1 : tensor.ne[0];
  const int64_t rows = tensor.numel() / width;
  const int64_t half = rows / named.heads / 2;
  std::vector<float> stored(static_cast<size_t>(tensor.numel()));
  TP_RETURN_IF_ERROR(Dequantize(tensor, 0, stored));
  for (int64_t head = 0; head < named.heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t from = (head * half * 2 + 2 * i + j) * width;
        const int64_t to = (head * half * 2 + j * half + i) * width;
        std::copy_n(stored.begin() + from, width, out.begin() + to);
      }
    }
  }
  return OkStatus();
}

}  // namespace tidepool::files
