#pragma once
// What the tables of plug-ins (core/base/plugin.h, cmake/plugin_table.cmake) do when they are first read: a
// plug-in that lacks what its kind needs ends the program in words, not where somebody calls what is not
// there.
//
// Each kind has, in its namespace beside the code that reads its table,
//
//   std::string FaultOf(const RewardPlugin& plugin);  // empty: none; "has no .make"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/plugin.h"

namespace tidepool {

// `all` as it is. Exit code 2, with a line on stderr, if one has a fault.
template <typename T>
std::vector<Plugin<T>> WithoutFaults(const char* kind, std::vector<Plugin<T>> all) {
  for (const auto& [name, make, file] : all) {
    const std::string fault = FaultOf(make());
    if (fault.empty()) continue;
    std::fflush(stdout);
    std::fprintf(stderr, "%s: TP_PLUGIN(%s, %s): %s; correct it and build again\n", file, kind, name,
                 fault.c_str());
    std::_Exit(2);
  }
  return all;
}

}  // namespace tidepool
