#pragma once
// Reads one YAML file into a JobConfig and checks it whole.
//
// Order: the file named by `extends` (relative to the file, one at a time, no cycles), the file,
// then overrides `a.b=c`, last wins. A null value takes an inherited key away. Unknown keys of `data` and
// `environment` are options of the task, game or control task and are checked by it; where another one takes
// its place, the inherited ones are left out, with a warning. Environment variables are not expanded.
//
// A relative path is looked for beside the file that it is written in, then in the current directory; one of
// an override in the current directory alone. What is there is absolute from then on, so that the config
// means the same in another directory; what is not there stays as it was written, with a warning that names
// both. No exceptions leave this module; reads files, writes nothing; any thread.
//
// Factories of plug-ins are called with the time that cluster.plugin_timeout_s gives them. What LoadConfig or
// LoadConfigText has read is what the process works on next: its limit is the usual one from then on
// (LimitedCall::Usual), which a config that is read beside it, as of a warm start, does not change: whoever
// tries what that one names has its limit meanwhile (UsualLimitFor).

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/config.h"
#include "core/base/limited_call.h"
#include "core/base/status.h"
#include "core/config/yaml_tree.h"

namespace tidepool::config {

// Where the value of a key came from.
struct Origin {
  enum class Kind { kDefault, kFile, kOverride };
  Kind kind = Kind::kDefault;
  Place place;  // of kFile and kOverride
  // Of a default: why it is not the documented one. Of a key in config.yaml of a run: where its value had
  // come from when that file was written. May be empty.
  std::string note;
  // "default", "configs/x.yaml:7", "override"
  [[nodiscard]] std::string ToString() const;
  // The same for messages, with what was typed: "override 'train.steps=3'".
  [[nodiscard]] std::string Where() const { return kind == Kind::kOverride ? place.ToString() : ToString(); }
};

struct LoadedConfig {
  JobConfig config;
  std::string path;                       // as given
  std::vector<std::string> files;         // read, the first is `path`, then what it extends
  std::vector<std::string> overrides;     // as given
  std::map<std::string, Origin> origins;  // of keys that were written, or whose default was adjusted;
                                          // list items as "reward.functions[0].name"
  std::vector<std::string> warnings;      // "file:line: key: what"
  bool beside = false;                    // another one names it, and was read first (LoadWarmStart)
  std::vector<std::string> history;       // of a run: what its resumes have changed, lines of resume.h
  [[nodiscard]] Origin OriginOf(const std::string& key) const;
};

// What a call of a plug-in may take that has no limit of its own, for LimitedCall::Usual. Of a config that
// was read beside another one the key is named with its file.
UsualLimit UsualLimitOf(const JobConfig& config);
UsualLimit UsualLimitOf(const LoadedConfig& loaded);

// Sets `value`, the value of `key`, to `to`; `why` stands as its origin.
template <typename T>
void Adjust(LoadedConfig& loaded, const std::string& key, T& value, std::type_identity_t<T> to,
            const std::string& why) {
  value = to;
  loaded.origins[key] = {Origin::Kind::kDefault, {}, why};
}

// kNotFound: no such file. kInvalidArgument: everything that is wrong, one
// "file:line: key: what was found; what to do" a line.
StatusOr<LoadedConfig> LoadConfig(const std::string& path, const std::vector<std::string>& overrides = {});

// The same from a text; `name` stands for the file in messages and for relative paths.
StatusOr<LoadedConfig> LoadConfigText(const std::string& text, const std::string& name,
                                      const std::vector<std::string>& overrides = {});

// Plays a few games of the environment that the config names, for the characters that a tiny model lacks of
// them, and for a game that crashes or hangs. In a child of this process, so before it has threads; for who
// is about to run the job, or was asked whether it can be. kInvalidArgument: what is wrong, as of LoadConfig.
// What is returned is a warning: this machine has no child for it, which is not the game's fault, and nothing
// is known of it; empty: none.
// `ask_service`: starts or finds an environment that is a service, and returns what it says of itself
// (workers/side/environment_services.h). Errors as those of a trial of games. What model.policy has to know
// of one is filled in (environment.observation_size and others).
struct ServiceSays {
  std::string characters;  // that it says first, and that it names
  // Of a control task.
  int64_t observation_size = 0, actions = 0, max_episode_steps = 0;
  bool continuous = false;
  double action_low = 0, action_high = 0;
  double solved_return = 0;
};
using AskService = std::function<StatusOr<ServiceSays>(const JobConfig& config)>;
StatusOr<std::string> TryGames(LoadedConfig& loaded, const AskService& ask_service = {});

// A config that was checked once, for who looks at a run: each key for itself. What the rules between keys
// would say is left out, because the files that it names may be gone since, and so may its plug-ins: none is
// called, their names and options stand as they were written.
StatusOr<LoadedConfig> ReadCheckedConfig(const std::string& path);

// The job that model.init.warm_start of `config` names, with the seed of `config`, because the seed
// chooses the held-out questions: none of this job's may be trained on in its warm start. LoadConfig
// has checked that both train the same model and hold out the same. kFailedPrecondition: none is named.
StatusOr<LoadedConfig> LoadWarmStart(const JobConfig& config);

}  // namespace tidepool::config
