#pragma once
// What a worker process without a device does whatever it is for: attach, hear the controller, say that it
// lives, end. Graders and hosts of environments are SideWorkers; another kind is a class like theirs.

#include <chrono>
#include <memory>
#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/messages.h"
#include "workers/net/worker_trace.h"

namespace tidepool::workers {

struct SideWorkerOptions {
  std::string address, token_file, run_id, control_file;
  int64_t place = -1;
};

// One thread calls everything here; `Send` is for any thread.
class SideWorker {
 public:
  virtual ~SideWorker() = default;
  // Until the controller says Shutdown (0) or is gone (3); 2: it could not begin.
  int Run(const SideWorkerOptions& options, scheduler::WorkerKind kind);

 protected:
  virtual Status BeforeAttach(up::Hello&) { return OkStatus(); }
  // Welcome, once an incarnation.
  virtual Status Begin(const JobConfig& config, const down::Welcome& welcome, Incarnation inc) = 0;
  // A command for this incarnation, after Begin.
  virtual void Take(ToWorkerBody& command) = 0;
  virtual void Answer() {}  // after every turn of the loop: what is due
  [[nodiscard]] virtual std::chrono::milliseconds UntilNext() const { return std::chrono::milliseconds(50); }
  virtual void Describe(up::Heartbeat& beat) = 0;
  virtual void End() {}  // before the link closes, or another incarnation begins

  void Send(FromWorkerBody body) { link_->Send(std::move(body)); }
  std::unique_ptr<observe::TraceWriter> trace_;  // set by Begin, or never

 private:
  void On(LinkEvent& event);
  Status Welcomed(const down::Welcome& welcome);
  void Failed(const char* what, const Status& status);
  void Beat();

  Mailbox<LinkEvent> inbox_;
  std::unique_ptr<Link> link_;
  std::chrono::steady_clock::time_point next_beat_{};
  double heartbeat_s_ = 0.5;
  Incarnation inc_;
  int exit_code_ = -1;
};

}  // namespace tidepool::workers
