#pragma once
// How the tensors of a Hugging Face folder map to the parameters of the flat layout. The functions
// that users call (ReadSpec, LoadHuggingFace, SaveHuggingFace) are declared in weights.h.

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/spec.h"
#include "core/model/weights.h"

namespace tidepool::model {

// One tensor of the folder: the rows [row, row + shape[0]) of parameter `index`.
struct HuggingFaceTensor {
  std::string name;             // "model.layers.3.self_attn.q_proj.weight"
  int64_t index = 0;            // in Layout(spec)
  int64_t row = 0;
  std::vector<int64_t> shape;
};
// Every tensor that a model of this spec needs, in the layout's order.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& spec);

// Whether `folder` can be loaded: config valid and implemented, every tensor there with its shape and a
// floating dtype. Reads no values.
Status CheckHuggingFace(const std::string& folder);

// config.json and generation_config.json.
Status WriteConfigFiles(const ModelSpec& spec, DType dtype, const std::string& folder);

}  // namespace tidepool::model
