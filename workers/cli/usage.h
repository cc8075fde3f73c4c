#pragma once
// What is wrong with a command line, in words that say what to type instead. Pure.

#include <CLI/CLI.hpp>
#include <string>

namespace tidepool::workers {

// Of an error that parsing `app` has thrown; not of --help and --version.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tidepool::workers
