#pragma once
// The frozen model below the adapters of a run, once on a host: the first worker that needs it reads it into
// shared memory, lays it out there for a CPU's products, and all map it. A worker that dies half-way
// leaves nothing that another one takes for whole; of two that come at once one reads and the other waits for
// it.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/spec.h"
#include "core/model/weights.h"

namespace tidepool::workers {

struct BaseModel {
  uint64_t identity = 0;  // of what `read` gives
  model::ModelSpec spec;
  model::DType dtype = model::DType::kFloat32;
  std::optional<model::BlockLayout> blocks;  // that `read` fills; none: with the layout of `spec`
  std::function<Status(std::span<std::byte> arena)> read;
};
// `folder`: SharedBlock::FolderOf the run. `lays_out`: for its products, or those of a device that lays out
// alike; null: for none. Where shared memory has no room for it, a copy of this process alone. Digest() of
// what is laid out is the identity.
// kDeadlineExceeded: another worker was reading it for longer than `patience`; errors of `read`.
StatusOr<std::shared_ptr<const model::Weights>> MapBase(const std::string& folder, const BaseModel& model,
                                                        device::Device* lays_out,
                                                        std::chrono::nanoseconds patience);
}  // namespace tidepool::workers
