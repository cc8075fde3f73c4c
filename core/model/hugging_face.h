#pragma once
// Hugging Face folders without their values: config files, and how tensors map to the parameters of the
// flat layout. No LibTorch; loading and saving weights is in weights.h.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/files/safetensors.h"
#include "core/model/layout.h"
#include "core/model/spec.h"

namespace tidepool::model {

// As which a tensor of this type is stored.
inline files::DType StoredType(DType dtype) {
  return dtype == DType::kFloat32 ? files::DType::kF32 : files::DType::kBF16;
}

// config.json and generation_config.json. Errors name file and key; what is legal but not implemented is
// kUnimplemented.
StatusOr<ModelSpec> ReadSpec(const std::string& folder);
// Makes a language model's config.json that of a model with a value head.
void NameAsRewardModel(nlohmann::ordered_json& config);
Status WriteConfigFiles(const ModelSpec& spec, DType dtype, const std::string& folder);

// Whether `folder` can be loaded: config valid and implemented, every tensor there with its shape and a
// floating dtype. Reads no values.
Status CheckHuggingFace(const std::string& folder);

// One tensor of the folder: the rows [row, ...) of parameter `index`, in order.
struct HuggingFaceTensor {
  std::string name;   // "model.layers.3.self_attn.q_proj.weight"
  int64_t index = 0;  // in Layout(spec)
  int64_t row = 0;
  std::vector<int64_t> shape;
};
// Experts stand one by one in published folders, or all experts of a layer in one tensor (transformers 5
// keeps them so in memory, and can write them so).
enum class ExpertTensors { kOneByOne, kFused };
// Every tensor that a model of this spec needs, in the layout's order.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& spec,
                                                  ExpertTensors experts = ExpertTensors::kOneByOne);
// The same as they are stored; all are there, with their shapes. kInvalidArgument names the first that is
// not.
StatusOr<std::vector<HuggingFaceTensor>> FindTensors(const std::string& folder, const ModelSpec& spec,
                                                     const files::SafetensorsFolder& stored);

}  // namespace tidepool::model
