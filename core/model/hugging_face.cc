#include "core/model/hugging_face.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "core/files/float_formats.h"
#include "core/files/safetensors.h"
#include "core/model/weights.h"

namespace tidepool::model {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Rounds or widens `n` stored values to the arena's dtype.
void Convert(files::DType from, const std::byte* in, int64_t n, DType to, std::byte* out) {
  if ((from == files::DType::kBF16 && to == DType::kBFloat16) || (from == files::DType::kF32 && to == DType::kFloat32)) {
    std::memcpy(out, in, static_cast<size_t>(n * Bytes(to)));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    float value = 0;
    if (from == files::DType::kF32) {
      std::memcpy(&value, in + i * 4, 4);
    } else if (from == files::DType::kF64) {
      double wide = 0;
      std::memcpy(&wide, in + i * 8, 8);
      value = static_cast<float>(wide);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, in + i * 2, 2);
      value = from == files::DType::kBF16 ? files::Bf16ToFloat(bits) : files::Fp16ToFloat(bits);
    }
    if (to == DType::kFloat32) {
      std::memcpy(out + i * 4, &value, 4);
    } else {
      const uint16_t bits = files::FloatToBf16(value);
      std::memcpy(out + i * 2, &bits, 2);
    }
  }
}

bool Floating(files::DType t) {
  return t == files::DType::kF32 || t == files::DType::kF16 || t == files::DType::kBF16 || t == files::DType::kF64;
}

Status CheckTensors(const std::string& folder, const ModelSpec& spec, const files::SafetensorsFolder& stored) {
  for (const HuggingFaceTensor& t : HuggingFaceTensors(spec)) {
    const auto entry = stored.Find(t.name);
    if (!entry.has_value()) {
      return InvalidArgument(folder + ": the tensor " + t.name + " " + ShapeText(t.shape) + " is missing from the safetensors");
    }
    const std::string where = entry->file->path() + ": " + t.name;
    if (!Floating(entry->info->dtype)) {
      return InvalidArgument(where + ": dtype " + std::string(files::DTypeName(entry->info->dtype)) + ", expected F32, BF16, F16 or F64");
    }
    if (entry->info->shape != t.shape) {
      return InvalidArgument(where + ": shape " + ShapeText(entry->info->shape) + ", expected " + ShapeText(t.shape) + " by config.json");
    }
  }
  return OkStatus();
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& s) {
  std::vector<HuggingFaceTensor> list;
  const std::vector<Parameter> layout = Layout(s);
  const int64_t d = s.hidden_size, ff = s.intermediate_size, q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  for (size_t i = 0; i < layout.size(); ++i) {
    const std::string& name = layout[i].name;
    const auto add = [&](std::string hf, int64_t row, std::vector<int64_t> shape) {
      list.push_back({std::move(hf), static_cast<int64_t>(i), row, std::move(shape)});
    };
    if (name == "embedding") { add("model.embed_tokens.weight", 0, layout[i].shape); continue; }
    if (name == "final_norm") { add("model.norm.weight", 0, layout[i].shape); continue; }
    if (name == "head") { add("lm_head.weight", 0, layout[i].shape); continue; }
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
    if (part == "gate_up") {
      add(mlp + "gate_proj.weight", 0, {ff, d});
      add(mlp + "up_proj.weight", ff, {ff, d});
    }
    if (part == "down") add(mlp + "down_proj.weight", 0, {d, ff});
  }
  return list;
}

Status CheckHuggingFace(const std::string& folder) {
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  return CheckTensors(folder, spec, *stored);
}

StatusOr<std::unique_ptr<Weights>> LoadHuggingFace(const std::string& folder, DType dtype, std::span<std::byte> arena) {
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  // Before anything is allocated: the files must hold what the config promises.
  TP_RETURN_IF_ERROR(CheckTensors(folder, spec, *stored));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, Weights::Create(spec, dtype, arena));
  for (const HuggingFaceTensor& t : HuggingFaceTensors(spec)) {
    const auto entry = stored->Find(t.name);
    const Parameter& p = weights->layout()[static_cast<size_t>(t.index)];
    const int64_t row = p.numel() / p.shape[0], n = entry->info->numel();
    const std::byte* in = entry->bytes().data();
    std::byte* out = weights->bytes().data() + (p.offset + t.row * row) * Bytes(dtype);
    const int64_t in_bytes = files::DTypeBits(entry->info->dtype) / 8;
    at::parallel_for(0, n, 1 << 18, [&](int64_t begin, int64_t end) {
      Convert(entry->info->dtype, in + begin * in_bytes, end - begin, dtype, out + begin * Bytes(dtype));
    });
  }
  return weights;
}

Status SaveHuggingFace(const Weights& weights, const std::string& folder, int64_t max_shard_bytes) {
  if (max_shard_bytes < 1) return InvalidArgument(folder + ": max_shard_bytes must be above 0");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FailedPrecondition(folder + ": cannot create the folder: " + error.message());
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(weights.spec());
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<files::TensorSource> sources;
  const int64_t size = Bytes(weights.dtype());
  for (const HuggingFaceTensor& t : tensors) {
    const Parameter& p = weights.layout()[static_cast<size_t>(t.index)];
    const int64_t row = p.numel() / p.shape[0];
    const auto bytes = weights.bytes().subspan(static_cast<size_t>((p.offset + t.row * row) * size), static_cast<size_t>(t.shape[0] * row * size));
    sources.push_back(files::SourceOf(t.name, weights.dtype() == DType::kFloat32 ? files::DType::kF32 : files::DType::kBF16, t.shape, bytes));
  }
  TP_RETURN_IF_ERROR(files::WriteSafetensorsFolder(folder, sources, max_shard_bytes));
  // Last, so that a folder with a config.json is whole.
  return WriteConfigFiles(weights.spec(), weights.dtype(), folder);
}

}  // namespace tidepool::model
