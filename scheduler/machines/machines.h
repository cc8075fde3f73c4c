#pragma once
// The controller from inside: its machines, and what they share. Not included outside scheduler/.

#include "scheduler/controller.h"
#include "scheduler/machines/batches.h"
#include "scheduler/machines/checkpoints.h"
#include "scheduler/machines/evaluations.h"
#include "scheduler/machines/facts.h"
#include "scheduler/machines/lifecycle.h"
#include "scheduler/machines/previews.h"
#include "scheduler/machines/rollouts.h"
#include "scheduler/machines/sample_flow.h"
#include "scheduler/machines/slots.h"
#include "scheduler/machines/steps.h"
#include "scheduler/machines/trainer_state.h"
#include "scheduler/machines/workers.h"

namespace tidepool::scheduler {

struct Machines {
  explicit Machines(const ControllerOptions& options);

  RunState state;
  Outbox out{state};
  Waits waits;
  LiveCost cost;
  TimePoint now;
  const Facts facts;
  Fleet fleet;

  Lifecycle life;
  Workers workers;
  Slots slots;
  Rollouts rollouts;
  SampleFlow samples;
  Batches batches;
  TrainerState trainer;
  Steps steps;
  Previews previews;
  Checkpoints checkpoints;
  Evaluations evaluations;
};

// Defined with the controller's options: controller_options.cc.
Status Validate(const ControllerOptions& options);                              // kInvalidArgument
Status SameRun(const record::RunTerms& was, const ControllerOptions& options);  // kInvalidArgument

}  // namespace tidepool::scheduler
