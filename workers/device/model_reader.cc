#include "workers/device/model_reader.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "core/base/hash.h"
#include "core/device/batch_invariance.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/forward_invariance.h"
#include "core/model/products.h"
#include "workers/data/host_base.h"

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

StatusOr<std::shared_ptr<const model::Weights>> ModelReader::Base(const std::string& shared_memory,
                                                                  bool trains) const {
  const std::shared_ptr<device::Device> device = NewDevice();
  if (shared_memory.empty()) {
    TP_ASSIGN_OR_RETURN(std::unique_ptr<model::Weights> alone, Read("model.path", ""));
    if (!trains) alone->LayOutFor(*device);
    return std::shared_ptr<const model::Weights>(std::move(alone));
  }
  TP_ASSIGN_OR_RETURN(model::ModelSpec spec, model::ReadSpec(model_dir_));
  // A run has one base, but its files may be others when it goes on. One that is made from the config is the
  // same before and after somebody has saved it.
  uint64_t identity = Hash64(model_dir_, config_.seed);
  std::error_code error;
  const bool made = config_.model.init && config_.model.init->warm_start.empty();
  for (std::filesystem::directory_iterator file(model_dir_, error), end; !error && file != end && !made;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.ends_with(".safetensors") && !name.ends_with(".json")) continue;  // notes beside it are not it
    const auto size = file->file_size(error);
    const auto written = file->last_write_time(error).time_since_epoch().count();
    identity += Hash64(name, Mix64(size) + static_cast<uint64_t>(written));
  }
  return MapBase(
      shared_memory,
      {.identity = identity,
       .spec = std::move(spec),
       .dtype = config_.model.dtype,
       .read = [this](std::span<std::byte> arena) { return Read("model.path", "", arena).status(); }},
      device->host_memory() ? device.get() : nullptr,
      std::chrono::nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(config_.cluster.start_timeout_s))));
}

}  // namespace tidepool::workers
