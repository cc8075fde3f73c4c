#pragma once
// Hardware profiles and paces (configs/hardware, configs/pace) as the cost model wants them: what `simulate`,
// `plan` and paced slots share.

#include <string>

#include "core/base/status.h"
#include "core/config/workload.h"
#include "scheduler/cost_model.h"

namespace tidepool::workers {

// `name`: a profile's name or a file (config::HardwarePath, seen from the file `from`).
StatusOr<scheduler::HardwareProfile> LoadHardware(const std::string& name, const std::string& from = "");

scheduler::ModelShape ToShape(const config::WorkloadModel& model);

struct PaceModel {
  std::string name;  // of the pace, for people
  scheduler::HardwareProfile hardware;
  scheduler::ModelShape model;
  int64_t devices_per_slot = 1, token_factor = 1;
  double engine_efficiency = 0.9, train_efficiency = 0.4;
  config::Pace measured;  // of it the keys that only `simulate` reads
  [[nodiscard]] scheduler::CostModel Cost() const {
    return {hardware, model, devices_per_slot, engine_efficiency};
  }
};
StatusOr<PaceModel> LoadPaceModel(const std::string& path);

}  // namespace tidepool::workers
