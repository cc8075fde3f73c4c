#pragma once
// Ways to look at a config and at the schema. Pure.

#include <string>

#include "core/base/config.h"
#include "core/config/load.h"

namespace tidepool::config {

// `config show`, and config.yaml of a run directory: every key with its value and, in a comment,
// where it came from; the overrides and what resumes changed at the top, in comments. Loads again to the same
// JobConfig.
std::string ResolvedYaml(const LoadedConfig& loaded);

// The same without the keys that nobody set: what a person looks at. Loads to the same JobConfig, too.
std::string SetYaml(const LoadedConfig& loaded);

// JSON schema (draft 2020-12) of a config file, indented.
std::string JsonSchema();

// Markdown reference of all keys, generated tasks and rewards, for docs/config.md.
std::string ConfigReference();

}  // namespace tidepool::config
