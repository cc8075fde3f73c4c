#pragma once
// Which keys belong to jobs with model.policy (a small policy of control tasks), which to language models,
// and the rules between keys of the former.

#include <string_view>

#include "core/base/config.h"
#include "core/config/binder.h"
#include "core/config/load.h"

namespace tidepool::config {

// The key means something to jobs with model.policy alone, and `config` is none of them.
// environment.instances is a key of services, too.
bool BelongsToPolicies(std::string_view key, const JobConfig& config);
// The key means nothing to a job of model.policy like `config`: text, tokens, questions; what a service says,
// of a task that is compiled in.
bool BelongsToText(std::string_view key, const JobConfig& config);

// requires config.model.policy to be set. Fills what the rest of the system reads of a fragment: one sample a
// group, as many tokens as it has steps.
void CheckPolicy(Binder& b, LoadedConfig& loaded);

}  // namespace tidepool::config
