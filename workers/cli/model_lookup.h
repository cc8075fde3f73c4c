#pragma once
// Which model a person means: a folder, or the one that a run has made; of an adapter, the model that it
// changes as well. Reads files only. Any thread.

#include <optional>
#include <string>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::workers {

struct FoundModel {
  std::string dir;                                // the model folder
  std::string adapter = {};                       // folder of the adapter that changes it; empty: none
  std::string run = {};                           // the run directory that it is in; empty: none
  std::optional<StepNumber> step = std::nullopt;  // of the checkpoint, where it is one's
  std::string architecture = {};  // model_type of its config.json; "mlp_policy": a policy of control tasks
  [[nodiscard]] bool is_policy() const { return architecture == "mlp_policy"; }
};

// `name` is, in this order: a model folder (it has a config.json), or an adapter's
// (core/model/adapter_files.h), which names its model; a checkpoint's folder; a run as FindRun takes it, of
// which final/ is taken, else the model of the newest checkpoint; RUN:STEP, the model of that checkpoint;
// RUN:best, the one in best/. A checkpoint's model is compared with its manifest. `key` begins messages:
// "--model".
//   kNotFound          no such folder, run or step; what there is instead is listed. Or a run without a model
//   kInvalidArgument   a folder that is neither a model nor a run
//   kDataLoss          the checkpoint's model is not what its manifest says
//   as AdapterFolder::CheckBase where it is an adapter, which names a folder that it does not fit
StatusOr<FoundModel> FindModel(const std::string& name, const std::string& key,
                               const std::string& root = "runs");
// The model of --model, changed by an adapter, whichever model that names. `key` begins messages about it.
// Errors as above.
StatusOr<FoundModel> FindAdapted(const std::string& base, const std::string& adapter, const std::string& key);

// "runs/x/checkpoints/step_20/model (step 20; the run has no final model)". What to say of a model that was
// taken of a run; of a folder that was named as it is, its path.
std::string DescribeModel(const FoundModel& model);

}  // namespace tidepool::workers
