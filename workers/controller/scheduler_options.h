#pragma once
// What the scheduler, and the store of its checkpoints, have to know of a job, taken from its config: the
// only place where one becomes the other.

#include <cstdint>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/storage/checkpoint_store.h"
#include "scheduler/controller_options.h"

namespace tidepool::workers {

// `held_out`: questions that the data sets aside; an evaluation asks eval.samples of them. The caller adds
// what a config does not say: run_id, config_digest, data_rows and the predicted memory of the roles.
scheduler::ControllerOptions SchedulerOptions(const JobConfig& config, int64_t held_out);

// Models beside the trained one that score every row of a step (reference, teacher, critic); rl alone.
int64_t FurtherModels(const JobConfig& config);

// checkpoint.store; none exists where the config names none.
storage::StorePlace StoreOf(const JobConfig& config);

// The placement of `fleet`, whose policy is a plug-in, as LimitedCalls: the scheduler itself has neither a
// clock nor threads. kInvalidArgument: of scheduler::CheckPolicy. For ControllerOptions::placement.
StatusOr<scheduler::Placement> LimitedPlacement(const scheduler::FleetOptions& fleet);

}  // namespace tidepool::workers
