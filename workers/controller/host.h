#pragma once
// The process of a host: starts the workers of a run that belong on this machine, and starts them again when
// they end otherwise than in order. The controller may be on another host, and another one may take its
// place.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "workers/controller/joined_host.h"

namespace tidepool::workers {

struct HostOptions {
  std::string run_dir;                               // of a host that has joined, its own folder
  std::optional<JoinedHost> joined = std::nullopt;   // it does not see the run directory
  std::string self_path;                             // the program tidepool
  int64_t slots = 1;                                 // device workers of each host
  int64_t index = 0;                                 // of this one, from 0
  std::string beat;                                  // a file that it touches each second; empty: none
  int64_t hosts = 0;                                 // that were started with this one; 0: not known
  std::string hosts_said_by;                         // the variable that says so
  double patience_s = 600;                           // without a sign of life of a controller
  std::function<bool()> stop = {};                   // whether it was told to end
  std::function<void(const std::string&)> say = {};  // a line for people
};

// Until the run is finished or it is told to stop (both OK), or no controller has given a sign of life for
// longer than the patience (kDeadlineExceeded). kInvalidArgument: a live controller has no work for a host of
// this index. kFailedPrecondition: nor can any of its workers do that work, and others would not either
// (exit_code.h). Ends its workers before it returns.
// A host that has joined knows of the run what its workers say: it ends when all of them have ended in order.
Status RunHost(const HostOptions& options);

}  // namespace tidepool::workers
