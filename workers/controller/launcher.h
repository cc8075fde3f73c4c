#pragma once
// Starts worker processes on this machine, notices when they end, and ends them.
//
// Children get their own log file and, of our environment, only what the programs need (docs/operating.md has
// the list): secrets in it do not reach graders. They end with us: the launcher asks the kernel to kill them
// when this process dies, unless `outlive` (cluster.reattach_grace_s > 0). All calls from one thread, the one
// that made the launcher, and it has to live as long as the children: the kernel ties "parent death" to the
// starting thread.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/time.h"

namespace tidepool::workers {

std::string SignalName(int number);  // "SIGTERM"

struct Ended {
  int64_t place = 0;
  pid_t pid = 0;
  bool in_order = false;                // exit status 0
  std::optional<int> exit_status = {};  // none: a signal ended it, or it is not known
  std::string why;          // "process 12 ended with exit status 3: what it said last", or by which signal
  std::string blames = {};  // the plug-in that it was in, as it reported; empty: none
  int64_t peak_bytes = 0;   // largest resident memory; 0: not known
  // Another process at its place would end so again (workers/net/exit_code.h), and no plug-in chose the code.
  [[nodiscard]] bool for_good() const { return exit_status == 2 && blames.empty(); }
};

// Which keys of the environment a worker gets: those of S3 (AWS_..., SSL_CERT_...) where it trains for a
// store there.
// A controller gets all of the environment.
enum class Keys { kNone, kOfStore, kAll };

class Launcher {
 public:
  explicit Launcher(bool outlive) : outlive_(outlive) {}
  ~Launcher();  // kills what still runs (unless outlive)

  // argv[0] is the program's path; --parent and --report are added (StartedBy). stdout and stderr go to `log`
  // (appended), where its last words are read when it has ended. kNotFound: no such program.
  Status Start(int64_t place, const std::vector<std::string>& argv, const std::string& log,
               Keys keys = Keys::kNone);
  // A worker that a former controller started and that came back by itself: it is killed and seen to end like
  // a child, though how it ended is not known. Nothing where the place has a process or the system cannot
  // watch that one (it has ended, or is not ours).
  void Adopt(int64_t place, pid_t pid);
  // Processes that ended since the last call; never waits.
  std::vector<Ended> Reap();
  void Kill(int64_t place, int signal);
  [[nodiscard]] pid_t Pid(int64_t place) const;  // 0: none
  // Waits for those that were told to end and write out what they hold, then SIGTERM, then SIGKILL.
  std::vector<Ended> EndAll(Duration by_themselves, Duration asked);

 private:
  bool outlive_;
  struct Child {
    int64_t place = 0;
    int64_t ours = 0;  // our own largest resident memory when it was started
    std::string log;
    int64_t log_bytes = 0;  // of those before it
    int report = -1;        // a file in memory: the plug-in that ends it
    int watch = -1;         // a pidfd, of one that was adopted: its number may be another's when it has ended
  };
  static void Signal(pid_t pid, const Child& child, int signal);
  static void Close(const Child& child);
  std::map<pid_t, Child> children_;
};

// What the launcher adds to a program's arguments.
struct StartedBy {
  int parent = 0;   // process whose death ends this one; 0: none
  int report = -1;  // open file of RunningCall::TellCrashes; negative: none
};
// Called first in a worker's main: ends with the parent, and tells crashes from now on.
void BeginWorker(const StartedBy& by);

}  // namespace tidepool::workers
