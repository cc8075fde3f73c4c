#pragma once
// The config of a run that goes on: what it was, what it is, and what of that may change.
//
// config.yaml of a run is written when the run begins, and again by a resume that changes something. Its
// comments then keep what was, so that no earlier config is lost:
//
//   # Resumed at step 7, 20261121T115502Z:
//   #   train.steps: was 20, is 40
//
// Functions read files where they say so; any thread.

#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/config/load.h"

namespace tidepool::config {

struct Difference {
  std::string key, was, is;                    // values as YAML
  bool allowed = false;                        // a resumed run may have another value
  bool taken_back = false;                     // it was an override, and is none now
  [[nodiscard]] std::string ToString() const;  // "train.steps: was 20, is 40"
  [[nodiscard]] std::string Told() const;      // the same, and that it was taken back
};

// What differs, in the order of the schema. Steps, learning rate, observe, checkpoint, eval, cluster and
// placement may; model, data, seed, algorithm, B and G may not. A reward's server may be elsewhere and have
// another time-out; what grades, with which weight and in which order, may not change. A file or folder may
// be elsewhere now if it is not where it was (files are looked for); model.init.warm_start is left out, whose
// content is what counts.
std::vector<Difference> Differences(const JobConfig& old, const JobConfig& now);

// kFailedPrecondition where one of them is not allowed, with a line for each such; what to do at the end.
// anew: how a run is started over, "start over with --fresh".
Status CheckAllowed(const std::vector<Difference>& differences,
                    const std::string& anew = "start over with --fresh");

// What `now` changes in a run that went on with `old` and has done `last_step`. kFailedPrecondition: not
// allowed, or it wants fewer steps than are done.
StatusOr<std::vector<Difference>> ChangesOnResume(const LoadedConfig& old, const LoadedConfig& now,
                                                  int64_t last_step,
                                                  const std::string& anew = "start over with --fresh");

// config.yaml of a run, read to go on with it: `overrides` on top; where values had come from, the overrides
// that were given before, and the history are taken from its comments. Reads and fails as LoadConfig.
StatusOr<LoadedConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides);
// The same as it was written, whatever has become of the files that it names.
StatusOr<LoadedConfig> ReadRunConfig(const std::string& path);

// Whether the command line of `loaded` has an override of `key`, or of a part that holds it.
bool Overrides(const LoadedConfig& loaded, const std::string& key);

// Adds to what `loaded` tells of its past. when: "step 7, 20261121T115502Z".
void AddToHistory(LoadedConfig& loaded, const std::string& when, const std::vector<Difference>& differences);

}  // namespace tidepool::config
