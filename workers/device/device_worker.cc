#include "workers/device/device_worker.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/limited_call.h"
#include "core/base/thread_annotations.h"
#include "core/observe/log.h"
#include "workers/build_info.h"
#include "workers/device/device_machine.h"
#include "workers/device/device_pool.h"
#include "workers/device/roles_work.h"
#include "workers/net/addresses.h"
#include "workers/net/certificates.h"
#include "workers/net/exit_code.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/worker_log.h"

namespace tidepool::workers {
namespace {

class DeviceWorker {
 public:
  explicit DeviceWorker(DeviceWorkerOptions options) : options_(std::move(options)) {}
  ~DeviceWorker() {
    if (options_.pool == nullptr) LimitedCall::StopAt({});
    heartbeat_ = {};
    link_.reset();
    weights_server_.reset();
    if (options_.pool != nullptr) options_.pool->SetGenerates(this, false);
    const auto turn = TakeTurn(TurnKind::kShort);  // an engine that others use loses a seat
    work_.reset();
  }
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  DeviceEnd Run() {
    if (options_.pool == nullptr) LogWorkerStart("device", options_.address);
    const Status attached = Attach();
    if (!attached.ok()) {
      Failed("attach_failed", attached.message());
      return {ExitCodeOf(attached), said_.first, said_.second};
    }
    std::optional<int> exit_code;
    while (!exit_code) {
      try {
        exit_code = Turn();
      } catch (const c10::OutOfMemoryError& e) {
        // What was computed is torn, and with the same batch it would not fit again here either: the
        // controller sees this worker end and says why.
        Failed("out_of_memory", work_->OutOfMemory(e.what_without_backtrace()));
        exit_code = 3;
      } catch (const std::bad_alloc&) {
        Failed("out_of_memory", work_->OutOfMemory("the host has no memory"));
        exit_code = 3;
      } catch (const std::exception& e) {
        // A device that has failed does so in every step, and would spoil one sample after the other: they
        // go elsewhere.
        Failed("device_failed", work_->DeviceFailed(e));
        exit_code = 3;
      }
    }
    if (options_.pool != nullptr) options_.pool->SetGenerates(this, false);
    const auto turn = TakeTurn(TurnKind::kShort);
    work_->FinishCheckpoint();
    work_->EndPull();
    work_->LeaveGroup();
    work_->LeaveEngine();
    work_->EndLog();
    heartbeat_.request_stop();
    if (options_.pool == nullptr) LogWorkerEnd(*exit_code);
    return {*exit_code, said_.first, said_.second};
  }

 private:
  void Failed(const std::string& event, const std::string& why) {
    LogWorkerFailure(event, why);
    said_ = {event, why};
  }

  // Of a device that other sessions compute on, too; null: there are none.
  [[nodiscard]] std::unique_ptr<DevicePool::Turn> TakeTurn(TurnKind kind) {
    if (options_.pool == nullptr) return nullptr;
    return std::make_unique<DevicePool::Turn>(*options_.pool, kind, [this] { StillWaits(); });
  }
  // Others compute: the controller that watches this session does not take it for hung. Of one that computes
  // for too long, its own controller does.
  void StillWaits() {
    if (options_.waits != nullptr) ++*options_.waits;
    if (work_ != nullptr) work_->pulse().Begin(scheduler::event::kAwaitTurn);
  }

  Status Attach() {
    TP_ASSIGN_OR_RETURN(const Credentials credentials, ReadCredentials(options_.token_file));
    TP_ASSIGN_OR_RETURN(const std::string host, credentials.identity ? AddressForOthers(options_.address)
                                                                     : AddressTowards(options_.address));
    work_ = std::make_unique<RolesWork>(
        credentials, options_.address, host, options_.gpu, options_.pool,
        [this](int64_t lease) { return CalledOff(lease); },
        [this](int64_t lease) { return EvaluationEnded(lease); });
    TP_ASSIGN_OR_RETURN(weights_server_,
                        WeightsServer::Start(host, credentials, 1 << 20,
                                             [this](const WantedBytes& w) { return work_->Read(w); }));
    LinkOptions link;
    link.address = options_.address;
    link.credentials = credentials;
    link.control_file = options_.control_file;
    link.hello.run_id = options_.run_id;
    link.hello.place = options_.place;
    link.hello.kind = scheduler::WorkerKind::kDevice;
    link.hello.pid = options_.pid > 0 ? options_.pid : getpid();
    link.hello.host = observe::HostName();
    link.build = BuildInfo() + " on host " + observe::HostName();
    link.hello.weights_address = weights_server_->address();
    TP_ASSIGN_OR_RETURN(link_, Link::Connect(link, [this](std::vector<LinkEvent> e) {
                          if (std::ranges::any_of(e, IsShutdown)) told_to_end_ = true;
                          inbox_.PutAll(std::move(e));
                        }));
    // A loss that does not come back holds this thread, which would hear of the end. Less patience than the
    // controller has, which kills without a word.
    if (options_.pool == nullptr)
      LimitedCall::StopAt({.signals = [this] { return told_to_end_ ? 1 : 0; },
                           .patience = std::chrono::seconds(1),
                           .by = "its controller",
                           .tell = [](const std::string& what) { LogWorkerFailure("end_waits", what); }});
    work_->Use(link_.get());
    machine_ = std::make_unique<DeviceMachine>(work_.get());
    heartbeat_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        up::Heartbeat beat = work_->pulse().Take();
        work_->pages().Show(beat, link_->MayServe(), work_->pulse().device());
        link_->Send(std::move(beat));
        const MutexLock lock(heartbeat_mu_);
        heartbeat_wake_.WaitFor(heartbeat_mu_, stop, work_->heartbeat());
      }
    });
    return OkStatus();
  }

  static bool IsShutdown(const LinkEvent& event) {
    const auto* command = std::get_if<Command>(&event);
    return command != nullptr && std::holds_alternative<down::Shutdown>(command->body);
  }

  // Takes what has come, makes one step. Set: the process has to end.
  std::optional<int> Turn() {
    const auto can_step = [this] { return machine_->CanStep() && link_->MayServe(); };
    const bool works = can_step() || machine_->CanPreview() || machine_->CanFollow();
    Receive(std::chrono::milliseconds(works ? 0 : machine_->Reads() ? 1 : 20));
    work_->pages().Turned();
    if (options_.unwanted != nullptr && *options_.unwanted)
      closed_ = LinkClosed{.why = "its run has ended it"};
    // What reads or changes tensors has the turn; looking for commands has not.
    const bool acts = works || machine_->HasCommands() || machine_->Reads();
    const bool steps = can_step() && !machine_->HasTraining();
    if (options_.pool != nullptr) options_.pool->SetGenerates(this, steps);
    const TurnKind kind = KindOfTurn(steps);
    const auto turn = acts ? TakeTurn(kind) : nullptr;
    const auto may = [&](TurnKind work) {
      return options_.pool == nullptr || (turn != nullptr && kind == work);
    };
    const int64_t refused = machine_->refused();
    machine_->Work([this] { return link_->ctl_epoch(); });
    if (machine_->exit_code()) {
      if (*machine_->exit_code() == 0) work_->RemoveSharedMemory();
      return machine_->exit_code();
    }
    if (closed_) {
      Failed("controller_lost", "there is no controller for this worker any more: " + closed_->why);
      return closed_->exit_code;
    }
    if (machine_->refused() != refused)
      observe::Log(LogLevel::kDebug, "commands_refused",
                   {{"commands", machine_->refused()},
                    {"text", "commands of an earlier epoch of the slot are not carried out"}});
    if (may(TurnKind::kGenerates) && can_step()) {
      machine_->Step([] { return TimePoint{std::chrono::steady_clock::now().time_since_epoch()}; });
    } else {
      machine_->SayTokens();
      if (may(TurnKind::kTrains) && machine_->CanPreview()) machine_->PreviewPiece();
      if (may(TurnKind::kGenerates) && machine_->CanFollow()) machine_->Follow();
    }
    return std::nullopt;
  }

  [[nodiscard]] TurnKind KindOfTurn(bool steps) const {
    if (machine_->HasTraining()) return TurnKind::kTrains;
    if (machine_->HasCommands()) return TurnKind::kShort;
    if (steps || machine_->CanFollow()) return TurnKind::kGenerates;
    return machine_->CanPreview() ? TurnKind::kTrains : TurnKind::kShort;
  }

  void Receive(std::chrono::milliseconds patience) {
    for (LinkEvent& event : inbox_.TakeAll(patience)) {
      if (auto* closed = std::get_if<LinkClosed>(&event)) {
        closed_ = std::move(*closed);
      } else {
        machine_->Put(std::move(std::get<Command>(event)));
      }
    }
  }

  // Asked within a step. Other commands wait for its end.
  bool CalledOff(int64_t lease) {
    if (options_.pool != nullptr) options_.pool->Yield([this] { StillWaits(); });
    Receive(std::chrono::milliseconds(0));
    const bool unwanted = options_.unwanted != nullptr && *options_.unwanted;
    return unwanted || closed_ || machine_->CalledOff(lease);
  }
  bool EvaluationEnded(int64_t lease) { return CalledOff(lease) || machine_->EvaluationEnded(lease); }

  DeviceWorkerOptions options_;
  Mailbox<LinkEvent> inbox_;
  std::optional<LinkClosed> closed_;          // the controller is gone
  std::pair<std::string, std::string> said_;  // what it ends with: event, why
  std::atomic<bool> told_to_end_ = false;
  Mutex heartbeat_mu_;
  Condition heartbeat_wake_;
  std::unique_ptr<RolesWork> work_;
  std::unique_ptr<DeviceMachine> machine_;
  std::unique_ptr<WeightsServer> weights_server_;
  std::unique_ptr<Link> link_;
  std::jthread heartbeat_;  // waits: its own wait ends with the stop token
};

}  // namespace

DeviceEnd RunDeviceWorker(const DeviceWorkerOptions& options) {
  DeviceWorker worker(options);
  return worker.Run();
}

}  // namespace tidepool::workers
