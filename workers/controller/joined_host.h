#pragma once
// A host that does not see the run directory, and has come with a join token: what it knows of the run, in a
// folder of its own. place-N/ has the identity of the worker at that place (newcomers.h), joined.json the
// rest.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/status.h"

namespace tidepool::workers {

struct JoinedPlace {
  int64_t place = 0;
  std::string role, name;  // "device", "device-1"
  bool vector = false;     // it serves a policy's environments
  bool store = false;      // it needs the keys of the run's object store
  bool models = false;     // it grades by models
};
TP_FIELDS(JoinedPlace, place, role, name, vector, store, models)

struct JoinedHost {
  std::string run_id, address, shared_memory;  // of the run, its controller, and its folder in /dev/shm
  std::vector<JoinedPlace> places;
};
TP_FIELDS(JoinedHost, run_id, address, shared_memory, places)

// Uses the join tokens of `file`, which goes then, and writes what came of each into `dir`. After an error
// the same file may be used again: places that have come are left as they are; the error names one that needs
// another token. Errors of Join and ReadJoinTokens; kFailedPrecondition: `dir` is of another run.
Status JoinHost(const std::string& file, const std::string& dir);
[[nodiscard]] bool HasJoined(const std::string& dir);  // with this folder
// Nullopt: nobody has joined with this folder. kDataLoss: joined.json does not parse.
StatusOr<std::optional<JoinedHost>> ReadJoinedHost(const std::string& dir);

// The program of a place and its arguments. A device worker gets the GPU whose number its place has among the
// device places of the host, where the run is on GPUs.
std::vector<std::string> WorkerCommand(const JoinedHost& joined, const JoinedPlace& place,
                                       const std::string& self_path, const std::string& worker_path,
                                       const std::string& identity_dir);
// Of the place, in the host's folder.
std::string IdentityDir(const std::string& dir, int64_t place);

}  // namespace tidepool::workers
