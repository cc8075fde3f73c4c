#pragma once
// Which run a person means, and whether it is alive. Reads files only; nothing is locked or changed, so
// a run may be looked at while its controller works. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "workers/device/disk_plan.h"  // BytesText

namespace tidepool::workers {

struct RunFolder {
  std::string dir;      // root/<folder>
  std::string started;  // "20261121T115502Z": of its name, else the time of its config; empty: unknown
};
// Folders under `root` that hold a run, newest first; none where there is no such root.
std::vector<RunFolder> RunFolders(const std::string& root);

// What RUN on the command line names.
struct RunPlace {
  std::string dir;      // the run directory; empty if a bare journal folder was named
  std::string journal;  // folder of its journal (may not exist yet)
};

// `name` is, in this order: a run directory; a folder of journal segments (NNNN.tpj); a folder under
// `root` (also where another folder has that name here); the newest run of that name under `root`,
// <name>-20261121T115502Z; the beginning of names there, of which the newest is taken (by the time in the
// name, else by the folder's own).
//   kNotFound          nothing of that name; what there is instead is listed
//   kInvalidArgument   a file, or a folder that holds neither a run nor a journal
StatusOr<RunPlace> FindRun(const std::string& name, const std::string& root = "runs");

// As FindRun, but a bare journal folder is kInvalidArgument: `why` says what else of a run is needed.
StatusOr<std::string> FindRunDirectory(const std::string& name, const std::string& why,
                                       const std::string& root = "runs");

// The run that --resume goes on with. A folder is that run, as of FindRun. Of the runs under `root` that have
// a name (in their config.yaml, or before the time in their folder's name) it is the newest that is not
// finished, and where all are, the newest, which says so or has more steps to do.
//   kNotFound                         there is none
//   kDataLoss, kFailedPrecondition    the journal of one that may be meant cannot be read: to go on with an
//   older one would silently lose work
// FindRunToResume is also content with the beginning of names, and `why` is as of FindRunDirectory.
StatusOr<std::string> FindRunToResume(const std::string& name, const std::string& why,
                                      const std::string& root = "runs");
StatusOr<std::string> FindRunOfConfig(const std::string& name, const std::string& root = "runs");

// Two names of one folder.
bool IsSameFolder(const std::string& a, const std::string& b);

// Whether process `pid` lives and is a program whose name begins with "tidepool": numbers are used again.
bool IsTidepoolProcess(int64_t pid);
bool IsPaused(int64_t pid);  // such a process, by SIGSTOP

}  // namespace tidepool::workers
