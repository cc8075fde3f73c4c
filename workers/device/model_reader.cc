#include "workers/device/model_reader.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/device/batch_invariance.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/forward_invariance.h"
#include "core/model/gguf_folder.h"
#include "core/model/products.h"
#include "workers/data/host_base.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {

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

StatusOr<std::unique_ptr<model::Weights>> ModelReader::ReadBase(std::span<std::byte> arena) const {
  TP_ASSIGN_OR_RETURN(auto weights, Read("model.path", "", arena));
  if (!base_digest_.empty()) TP_RETURN_IF_ERROR(CheckModelDigest(model_dir_, base_digest_));
  return weights;
}

struct ModelReader::InBlocks {
  model::GgufFolder gguf;
  model::BlockLayout layout;
};

StatusOr<std::shared_ptr<const ModelReader::InBlocks>> ModelReader::FindBlocks() const {
  // Others than the CPU get numbers.
  if (!model::HoldsGguf(model_dir_) || !NewDevice()->reads_blocks()) return std::shared_ptr<const InBlocks>();
  TP_ASSIGN_OR_RETURN(auto gguf, model::GgufFolder::Open(model_dir_));
  auto layout = model::LayoutInBlocks(gguf.spec(), config_.model.dtype, gguf.BlockTypes());
  return std::make_shared<const InBlocks>(InBlocks{std::move(gguf), std::move(layout)});
}

StatusOr<std::unique_ptr<model::Weights>> ModelReader::ReadToServe() const {
  TP_ASSIGN_OR_RETURN(const auto blocks, FindBlocks());
  if (blocks == nullptr) return Read("model.path", "");
  return model::Weights::CreateInBlocks(
      blocks->gguf.spec(), config_.model.dtype, blocks->layout, {}, [&](std::span<std::byte> arena) {
        return blocks->gguf.Read(config_.model.dtype, blocks->layout, arena);
      });
}

StatusOr<std::shared_ptr<const model::Weights>> ModelReader::Base(const std::string& shared_memory) const {
  const std::shared_ptr<device::Device> device = NewDevice();
  std::function<Status(std::span<std::byte>)> read = [this](std::span<std::byte> arena) {
    return ReadBase(arena).status();
  };
  TP_ASSIGN_OR_RETURN(const auto blocks, FindBlocks());
  if (blocks != nullptr) {
    read = [this, blocks](std::span<std::byte> arena) -> Status {
      TP_RETURN_IF_ERROR(blocks->gguf.Read(config_.model.dtype, blocks->layout, arena));
      return base_digest_.empty() ? OkStatus() : CheckModelDigest(model_dir_, base_digest_);
    };
    if (shared_memory.empty()) {
      TP_ASSIGN_OR_RETURN(auto alone, model::Weights::CreateInBlocks(blocks->gguf.spec(), config_.model.dtype,
                                                                     blocks->layout, {}, read));
      return std::shared_ptr<const model::Weights>(std::move(alone));
    }
  }
  if (shared_memory.empty()) {
    TP_ASSIGN_OR_RETURN(std::unique_ptr<model::Weights> alone, ReadBase());
    alone->LayOutFor(*device);
    return std::shared_ptr<const model::Weights>(std::move(alone));
  }
  TP_ASSIGN_OR_RETURN(model::ModelSpec spec, model::ReadSpec(model_dir_));
  // Without a digest it is made from the config, by the seed.
  const uint64_t identity = base_digest_.empty() ? Hash64(model_dir_, config_.seed) : Hash64(base_digest_, 0);
  return MapBase(shared_memory,
                 {.identity = identity,
                  .spec = std::move(spec),
                  .dtype = config_.model.dtype,
                  .blocks = blocks == nullptr ? std::nullopt : std::optional(blocks->layout),
                  .read = std::move(read)},
                 device->host_memory() ? device.get() : nullptr,
                 std::chrono::nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::duration<double>(config_.cluster.start_timeout_s))));
}

StatusOr<uint64_t> ModelReader::BaseIdentity() const {
  uint64_t identity = 0;
  if (base_digest_.empty()) {  // it is made from the config, by the seed
    RealFileSystem disk;
    TP_ASSIGN_OR_RETURN(const std::string shape, disk.ReadFile(model_dir_ + "/config.json"));
    identity = Hash64(shape, config_.seed);
    if (config_.model.init) identity = Hash64(std::to_string(config_.model.init->init_std), identity);
  } else {
    identity = Hash64(base_digest_, 0);
  }
  return Hash64(Name(config_.model.dtype), identity);
}

}  // namespace tidepool::workers
