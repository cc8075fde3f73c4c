#pragma once
// A policy's folder: config.json (spec.h) and model.safetensors with the layout's names, float32.

#include <string>

#include "core/base/status.h"
#include "core/model/weights.h"
#include "core/policy/spec.h"

namespace tidepool::policy {

bool HasWeights(const std::string& folder);
// Fills `weights`, which have PolicyLayout(spec of the folder). Errors name file and tensor.
Status LoadPolicy(const std::string& folder, model::Weights& weights);
// config.json last, so that a folder with one is whole.
Status SavePolicy(const PolicySpec& spec, const model::Weights& weights, const std::string& folder);

}  // namespace tidepool::policy
