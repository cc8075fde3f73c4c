#pragma once
// What generate, eval and serve share: the options of sampling, the model that --model names, a session with
// it.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/cli/command.h"
#include "workers/cli/inference.h"
#include "workers/cli/model_lookup.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {

struct SamplingOptions : InferenceOptions {
  SamplingOptions();
  std::string model;  // as it was named; job.model.path is where it is, after TakeModel
  // [NAME=]DIR, as they were named; after TakeModel, `adapters` are their folders, and these their names,
  // also of one that `model` is.
  std::vector<std::string> adapter_names;
  std::string dtype;
  // That requests are for: each of the adapters, or the model where there is none.
  [[nodiscard]] std::vector<int32_t> Asked() const;
};
// Of these, which model, and what computes it with which seed.
void AddModelOptions(CLI::App* command, SamplingOptions* options);
void AddAdapterOption(CLI::App* command, SamplingOptions* options);
void AddDeviceOptions(CLI::App* command, SamplingOptions* options);
void AddSampling(CLI::App* command, SamplingOptions* options);

// FindModel of --model, with the first --adapter where one is given; all are taken. What was taken is said on
// standard error, where it is not what was named. kInvalidArgument: two have one name.
StatusOr<FoundModel> TakeModel(SamplingOptions& options);
// "final" of "runs/mine/final/".
std::string LastName(const std::string& path);
// The options fit together, and the model writes text. Reads no tensor.
Status CheckSampling(const SamplingOptions& options);

// From now on a signal does not end this process; it asks what is under way, through this, to end in order. A
// second one ends it at once.
std::function<bool()> StopOnSignal();

// Starts the worker. Where options.stop is not given, a signal ends what it is asked with kAborted; a second
// one ends this process.
StatusOr<std::unique_ptr<InferenceSession>> StartSession(const CommandContext& context,
                                                         const SamplingOptions& options);
// The text side of a model folder, without any data.
StatusOr<std::unique_ptr<RowSource>> TextOf(const SamplingOptions& options);

// Of the commands that use a model: 3 where the worker failed or was interrupted, else 2.
int ModelExitCode(const Status& status);

}  // namespace tidepool::workers
