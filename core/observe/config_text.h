#pragma once
// RUN/config.yaml as a list of keys and values, without checking it: a run that an older or newer version of
// the program made is listed and compared as well. Pure; any thread.

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tidepool::observe {

// Of a resolved config (core/config/render.h): "reward.functions[0].name" -> "exact_answer". Comments and the
// quotes of strings are taken away; a list in brackets is one value. A line that cannot be read is left out.
std::map<std::string, std::string> ConfigValues(std::string_view yaml);
// Keys that nobody set: their comment says that the value is a default or a preset's.
std::set<std::string> ConfigDefaults(std::string_view yaml);

// Keys that a resume has changed, with every value that they had: "0.001, from step 20 1e-05". Not
// train.steps, which says how far a run goes.
std::map<std::string, std::string> ConfigChanges(std::string_view yaml);

}  // namespace tidepool::observe
