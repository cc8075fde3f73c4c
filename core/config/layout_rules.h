#pragma once
// The rules between keys that say where slots are and what they share, for who tries layouts of a job.

#include <string>
#include <vector>

#include "core/config/load.h"

namespace tidepool::config {

// Whether the job may have the layout that its config says: empty, or all that LoadConfig would say of it,
// "key: what was found; what to do". `loaded` was read by LoadConfig; since then only its scheduler.placement
// and actor_slots, train.mesh, zero and micro_batch_tokens may have changed. What the model's sizes alone
// tell (model::CheckCut) is not asked.
std::vector<std::string> LayoutProblems(LoadedConfig loaded);

}  // namespace tidepool::config
