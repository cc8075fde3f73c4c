#include "workers/device/model_reader.h"

#include <filesystem>
#include <utility>

#include "core/device/batch_invariance.h"
#include "core/model/products.h"
#include "core/observe/log.h"

namespace tidepool::workers {

bool HasTensors(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code error;  // what cannot be looked at is not there for us
  return fs::exists(dir + "/model.safetensors", error) ||
         fs::exists(dir + "/model.safetensors.index.json", error);
}

std::shared_ptr<device::Device> MakeCpuDevice(device::CpuDeviceOptions options) {
  return std::make_shared<device::CpuDevice>(std::move(options));
}

Status ModelReader::CoverProducts(const model::ModelSpec& spec, model::DType dtype) {
  if (!config_.deterministic) return OkStatus();
  TP_RETURN_IF_ERROR(model::CheckSpec(spec));
  if (config_.cluster.device == DeviceKind::kCuda)
    return device::TryBatchInvariance(*NewDevice(), model::ProductsOf(spec), dtype).At("deterministic mode");
  if (device::OwnProducts(dtype == DType::kFloat32)) return OkStatus();
  if (row_blocks_ == nullptr) row_blocks_ = std::make_shared<device::RowBlocks>();
  TP_RETURN_IF_ERROR(row_blocks_->Cover(model::ProductsOf(spec), dtype));
  if (!row_blocks_->limited().empty())
    observe::Log(
        LogLevel::kWarn, "row_blocks",
        {{"text", "deterministic: these products take smaller blocks of rows: " + row_blocks_->limited()}});
  return OkStatus();
}

std::shared_ptr<device::Device> ModelReader::NewDevice() const {
  return make_device_({.row_blocks = row_blocks_});
}

StatusOr<std::unique_ptr<model::Weights>> ModelReader::Read(const std::string& key,
                                                            const std::string& folder) const {
  const DType dtype = config_.model.dtype;
  const std::string& dir = folder.empty() ? model_dir_ : folder;
  if (HasTensors(dir)) return model::LoadHuggingFace(dir, dtype);
  if (!folder.empty() || !config_.model.init) return NotFound(key + ": " + dir + " has no weights");
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(dir));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<model::Weights> weights, model::Weights::Create(spec, dtype));
  weights->Initialize(config_.seed, config_.model.init->init_std);
  return weights;
}

}  // namespace tidepool::workers
