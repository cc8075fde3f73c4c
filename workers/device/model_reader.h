#pragma once
// Reads the models of a job: the one that it starts from, and further ones (reference, teacher, critic).

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/weights.h"

namespace tidepool::workers {

// What computes for one role.
using DeviceMaker = std::function<std::shared_ptr<device::Device>()>;
std::shared_ptr<device::Device> MakeCpuDevice();

class ModelReader {
 public:
  // `config` outlives this. `model_dir`: the folder that the run starts from. `base_digest`: what Base has to
  // find there (ModelDigestOf); empty: anything.
  ModelReader(const JobConfig& config, std::string model_dir, DeviceMaker make_device,
              std::string base_digest = "")
      : config_(config),
        model_dir_(std::move(model_dir)),
        make_device_(std::move(make_device)),
        base_digest_(std::move(base_digest)) {}

  // A model of its own from `folder`; "" is what the run starts from, made from the config with the job's
  // seed where the folder has no weights. `key` begins the error. `arena`: as of model::Weights::Create.
  [[nodiscard]] StatusOr<std::unique_ptr<model::Weights>> Read(const std::string& key,
                                                               const std::string& folder,
                                                               std::span<std::byte> arena = {}) const;
  // Read("model.path", "") for one that only generates: a folder of GGUF blocks in its blocks, where what
  // computes reads those.
  [[nodiscard]] StatusOr<std::unique_ptr<model::Weights>> ReadToServe() const;
  // What the run starts from, frozen, for an adapter: as MapBase has it in this folder; without one, of this
  // process alone.
  [[nodiscard]] StatusOr<std::shared_ptr<const model::Weights>> Base(const std::string& shared_memory) const;
  // The same for runs whose Base is the same, wherever their folders are.
  [[nodiscard]] StatusOr<uint64_t> BaseIdentity() const;
  // In deterministic mode on a GPU: whether it gives a row the same bits in every batch, by products of this
  // model (core/device/batch_invariance.h) and a block like its (core/model/forward_invariance.h).
  // kFailedPrecondition: it does not.
  [[nodiscard]] Status TryInvariance(const model::ModelSpec& spec, model::DType dtype) const;
  // For one role: what computes.
  [[nodiscard]] std::shared_ptr<device::Device> NewDevice() const { return make_device_(); }
  [[nodiscard]] const std::string& model_dir() const { return model_dir_; }

 private:
  struct InBlocks;
  // nullptr: its weights are numbers, or are read as such.
  [[nodiscard]] StatusOr<std::shared_ptr<const InBlocks>> FindBlocks() const;
  // What Read gives of the start, if it is what the run began with: compared after it was read, so what was
  // changed meanwhile is found, too.
  [[nodiscard]] StatusOr<std::unique_ptr<model::Weights>> ReadBase(std::span<std::byte> arena = {}) const;

  const JobConfig& config_;
  const std::string model_dir_;
  const DeviceMaker make_device_;
  const std::string base_digest_;
};

}  // namespace tidepool::workers
