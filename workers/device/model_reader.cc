#include "workers/device/model_reader.h"

#include <filesystem>
#include <utility>

#include "core/device/batch_invariance.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/forward_invariance.h"
#include "core/model/products.h"

namespace tidepool::workers {

bool HasTensors(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code error;  // what cannot be looked at is not there for us
  return fs::exists(dir + "/model.safetensors", error) ||
         fs::exists(dir + "/model.safetensors.index.json", error);
}

std::shared_ptr<device::Device> MakeCpuDevice() { return std::make_shared<device::CpuDevice>(); }

Status ModelReader::TryInvariance(const model::ModelSpec& spec, model::DType dtype) const {
  if (!config_.deterministic || config_.cluster.device != DeviceKind::kCuda) return OkStatus();
  TP_RETURN_IF_ERROR(model::CheckSpec(spec));
  const std::shared_ptr<device::Device> device = NewDevice();
  TP_RETURN_IF_ERROR(
      device::TryBatchInvariance(*device, model::ProductsOf(spec), dtype).At("deterministic mode"));
  return model::TryForwardInvariance(device, spec, dtype).At("deterministic mode");
}

StatusOr<std::unique_ptr<model::Weights>> ModelReader::Read(const std::string& key, const std::string& folder,
                                                            std::span<std::byte> arena) const {
  const DType dtype = config_.model.dtype;
  const std::string& dir = folder.empty() ? model_dir_ : folder;
  if (HasTensors(dir)) return model::LoadHuggingFace(dir, dtype, arena);
  if (!folder.empty() || !config_.model.init) return NotFound(key + ": " + dir + " has no weights");
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(dir));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<model::Weights> weights, model::Weights::Create(spec, dtype, arena));
  weights->Initialize(config_.seed, config_.model.init->init_std);
  return weights;
}

}  // namespace tidepool::workers
