#pragma once
// The matrices of a model that multiply rows in its forward.

#include <vector>

#include "core/device/device.h"
#include "core/model/spec.h"

namespace tidepool::model {

// requires CheckSpec(spec).
std::vector<device::ProductShape> ProductsOf(const ModelSpec& spec);

}  // namespace tidepool::model
