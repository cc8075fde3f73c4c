#pragma once
// What a worker process without a device does whatever it is for: attach, hear the controller, say that it
// lives, end. Graders and hosts of environments are SideWorkers; another kind is a class like theirs.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/config.h"
#include "core/base/disk_thread.h"
#include "core/base/status.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/messages.h"
#include "workers/net/worker_pages.h"
#include "workers/net/worker_trace.h"
#include "workers/side/side_machine.h"

namespace tidepool::workers {

struct SideWorkerOptions {
  std::string address, token_file, run_id, control_file;
  int64_t place = -1;
};

// One thread calls everything here; `Say` is for any thread.
class SideWorker : private SideWork {
 public:
  ~SideWorker() override = default;
  // Until the controller says Shutdown (0) or is gone (3); 2: it could not begin.
  int Run(const SideWorkerOptions& options, scheduler::WorkerKind kind);

 protected:
  virtual Status BeforeAttach(up::Hello&) { return OkStatus(); }
  // Welcome, once an incarnation.
  virtual Status Anew(const JobConfig& config, const down::Welcome& welcome) = 0;
  void Take(ToWorkerBody& command) override = 0;
  [[nodiscard]] virtual bool SeesRun() const { return false; }  // and reads from its folder
  virtual void Answer() {}                                      // after every turn of the loop: what is due
  // What plug-ins are asked here: the process ends with the name of one that does not come back. Null:
  // nothing yet.
  virtual CallWatch* Watch() = 0;
  // A plug-in that is of no use any more, which ends the process with its name; asked after every turn of the
  // loop.
  struct PluginFailure {
    std::string what, why;
  };
  virtual std::optional<PluginFailure> Failed() { return std::nullopt; }
  [[nodiscard]] virtual std::chrono::milliseconds UntilNext() const { return std::chrono::milliseconds(50); }
  virtual void Describe(up::Heartbeat& beat) = 0;
  virtual void End() {}  // before the link closes, or another incarnation begins

  // Threads that call plug-ins. After StopCallers none is left, or the process has ended.
  void StartCaller(std::function<void(const std::stop_token&)> body);
  void StopCallers();
  // waits: for what plug-ins may hold up, as long as their calls may take
  void Await(const std::future<void>& over);
  [[nodiscard]] bool ending() const { return exit_code_.has_value(); }  // End() is the last one

  // What `open`, of Anew, reads from disks. One that does not answer within a few seconds is an error here,
  // and holds up no more than that: kDeadlineExceeded.
  template <typename Open>
  static std::invoke_result_t<Open> OpenWithin(const std::string& operation, Open open) {
    DiskThread disk;
    auto opened = disk.DoWithin(std::chrono::seconds(5), operation, std::move(open));
    return opened ? *std::move(opened) : DeadlineExceeded("the " + operation + " does not end");
  }

  // Says in the log that what this worker works on comes from the controller, and why. `status` ok: the run's
  // folder is not here, as on a host without a shared file system.
  static void LogUnseen(const Status& status);

  void Say(FromWorkerBody body) override { link_->Send(std::move(body)); }
  std::unique_ptr<observe::TraceWriter> trace_;  // set by Anew, or never

 private:
  void On(LinkEvent& event);
  void Begin(int64_t ctl_epoch) override { link_->Begin(ctl_epoch); }
  Status Welcomed(const down::Welcome& welcome, bool anew) override;
  void Beat();
  void EndIfOverdue();
  void EndIfFailed();

  struct Caller {
    std::future<void> over;  // waits: as long as a call may take
    std::jthread thread;     // waits: joined when `over`
  };
  std::vector<Caller> callers_;
  Mailbox<LinkEvent> inbox_;
  std::unique_ptr<Link> link_;
  std::chrono::steady_clock::time_point next_beat_{};
  double heartbeat_s_ = 0.5;
  std::string controller_;  // address
  Credentials credentials_;
  WorkerPages pages_;
  SideMachine machine_{this};
  bool begun_ = false;
  std::string kind_;
  std::optional<int> exit_code_;
};

}  // namespace tidepool::workers
