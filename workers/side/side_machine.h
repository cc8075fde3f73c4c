#pragma once
// A side worker's end of what it is told, as a machine: which commands are of now, when it begins anew, when
// it ends (docs/worker_protocol.md). The worker process (side_worker.cc) and the simulated network run this
// very class. Pure; not thread-safe.

#include <cstdint>
#include <optional>
#include <variant>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "workers/net/exit_code.h"
#include "workers/net/messages.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {

// What a side worker is for, and to whom its answers are said.
class SideWork {
 public:
  virtual ~SideWork() = default;
  virtual void Begin(int64_t ctl_epoch) = 0;  // WorkerSession::Begin
  virtual void Say(FromWorkerBody message) = 0;
  // `anew`: this incarnation begins, with nothing. An error: it cannot work for this job.
  virtual Status Welcomed(const down::Welcome& welcome, bool anew) = 0;
  virtual void Take(ToWorkerBody& command) = 0;  // after Welcomed
};

class SideMachine {
 public:
  explicit SideMachine(SideWork* work) : work_(work) {}  // borrowed

  // newest: the controller epoch that the connection knows of; commands of earlier ones are dropped.
  void On(Command& command, int64_t newest) {
    if (command.ctl_epoch < newest || exit_code_) return;
    if (std::holds_alternative<down::Attached>(command.body)) {
      work_->Begin(command.ctl_epoch);
      work_->Say(up::Offer{.last = true});  // what is under way here is asked for again
    } else if (const auto* welcome = std::get_if<down::Welcome>(&command.body)) {
      const bool anew = welcome->inc != inc_;
      inc_ = welcome->inc;
      if (const Status welcomed = work_->Welcomed(*welcome, anew); !welcomed.ok())
        exit_code_ = ExitCodeOf(welcomed);
    } else if (std::holds_alternative<down::Shutdown>(command.body)) {
      exit_code_ = 0;
    } else if (inc_.valid()) {
      work_->Take(command.body);
    }
  }
  [[nodiscard]] std::optional<int> exit_code() const { return exit_code_; }  // set: the process has to end
  [[nodiscard]] Incarnation inc() const { return inc_; }

 private:
  SideWork* work_;
  Incarnation inc_;
  std::optional<int> exit_code_;
};

}  // namespace tidepool::workers
