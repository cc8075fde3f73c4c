#pragma once
// Reads one YAML file into a JobConfig and checks it whole.
//
// Order: the file named by `extends` (relative to the file, one at a time, no cycles), the file,
// then overrides `a.b=c`, last wins. A null value takes an inherited key away. Unknown keys of
// `data` are options of the task and are checked by its table. Paths are looked up in the current
// directory first, then beside the file they are written in. Environment variables are not expanded.
// No exceptions leave this module; reads files, writes nothing; any thread.

#include <map>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/config/yaml_tree.h"

namespace tidepool::config {

// Where the value of a key came from.
struct Origin {
  enum class Kind { kDefault, kFile, kOverride };
  Kind kind = Kind::kDefault;
  Place place;       // of kFile and kOverride
  std::string note;  // why a default is not the documented one; may be empty
  // "default", "configs/x.yaml:7", "override"
  [[nodiscard]] std::string ToString() const;
};

struct LoadedConfig {
  JobConfig config;
  std::string path;                       // as given
  std::vector<std::string> files;         // read, the first is `path`, then what it extends
  std::vector<std::string> overrides;     // as given
  std::map<std::string, Origin> origins;  // of keys that were written, or whose default was adjusted;
                                          // list items as "reward.functions[0].name"
  std::vector<std::string> warnings;      // "file:line: key: what"
  [[nodiscard]] Origin OriginOf(const std::string& key) const;
};

// Sets `value`, the value of `key`, to `to`; `why` stands as its origin.
void Adjust(LoadedConfig& loaded, const std::string& key, int64_t& value, int64_t to, const std::string& why);

// kNotFound: no such file. kInvalidArgument: everything that is wrong, one
// "file:line: key: what was found; what to do" a line.
StatusOr<LoadedConfig> LoadConfig(const std::string& path, const std::vector<std::string>& overrides = {});

// The same from a text; `name` stands for the file in messages and for relative paths.
StatusOr<LoadedConfig> LoadConfigText(const std::string& text, const std::string& name,
                                      const std::vector<std::string>& overrides = {});

// The job that model.init.warm_start of `config` names, with the seed of `config`, because the seed
// chooses the held-out questions: none of this job's may be trained on in its warm start. LoadConfig
// has checked that both train the same model and hold out the same. kFailedPrecondition: none is named.
StatusOr<LoadedConfig> LoadWarmStart(const JobConfig& config);

}  // namespace tidepool::config
