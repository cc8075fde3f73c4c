#include "workers/controller/host.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/places.h"
#include "core/config/load.h"
#include "core/storage/run_directory.h"
#include "workers/controller/found_gpus.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
#include "workers/controller/scheduler_options.h"
#include "workers/controller/worker_command.h"
#include "workers/data/shared_arena.h"
#include "workers/net/addresses.h"
#include "workers/net/auth.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(200);  // between two looks at files and processes
constexpr auto kBeat = std::chrono::seconds(1);
constexpr auto kFirst = std::chrono::seconds(1);  // before a worker is started again, doubled up to kMost
constexpr auto kMost = std::chrono::seconds(30);
constexpr auto kSettled = std::chrono::seconds(60);  // one that has lived so long begins at kFirst again
constexpr auto kOrderly =
    std::chrono::seconds(3);  // for a controller whose workers ended in order to end, too
constexpr auto kEndPatience = std::chrono::seconds(10);  // for workers to write out what they hold

// One life of a controller.
struct Controller {
  std::string run_id, address;
  int64_t epoch = 0;
  std::string shared_memory;  // folder of the run in /dev/shm
  bool operator==(const Controller&) const = default;
};

nlohmann::json ReadObject(const std::string& path) {
  std::ifstream in(path);
  auto json = in ? nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false) : nlohmann::json();
  return json.is_object() ? json : nlohmann::json::object();
}

// Nothing while the file is not there, or not whole.
std::optional<Controller> ReadController(const std::string& control) {
  const nlohmann::json json = ReadObject(control);
  const auto run_id = json.find("run_id"), address = json.find("address"), epoch = json.find("ctl_epoch");
  if (run_id == json.end() || !run_id->is_string() || address == json.end() || !address->is_string() ||
      epoch == json.end() || !epoch->is_number_integer())
    return std::nullopt;
  const auto shared = json.find("shared_memory");
  return Controller{run_id->get<std::string>(), address->get<std::string>(), epoch->get<int64_t>(),
                    shared != json.end() && shared->is_string() ? shared->get<std::string>() : ""};
}

// The process of a place.
struct Process {
  bool runs = false;
  Controller started_for;
  Clock::time_point since, due;  // when it was started; when it may be started
  std::chrono::seconds pause = kFirst;
  std::string given_up;  // why another one would end so again, with this controller; empty: it would not
};

class Host {
 public:
  explicit Host(const HostOptions& options) : options_(options), paths_(options.run_dir) {}

  Status Run() {
    heard_ = Clock::now();
    if (options_.joined) TP_RETURN_IF_ERROR(MeetJoined());
    while (!options_.stop()) {
      options_.joined ? LookAtWorkers() : Look();
      Reap();
      if (options_.joined && ours_.empty())
        return End(
            "its workers have ended in order: the run is over, or was stopped; where it goes on at the "
            "same address, `tidepool host " +
            options_.run_dir + "` does, too");
      Beat();
      if (seen_ && !controller_ && Finished()) return End("the run is finished");
      // A file that a killed controller left may ask for anything: only one that lives is answered.
      if (alive_ && !refused_.ok()) return refused_;
      if (controller_ && refused_.ok()) TP_RETURN_IF_ERROR(StartDue());
      TP_RETURN_IF_ERROR(AllGivenUp());
      if (Clock::now() - heard_ > std::chrono::duration<double>(options_.patience_s)) {
        if (!controller_ && Finished()) return End("the run is finished");
        if (options_.joined)
          return DeadlineExceeded(
              "no worker has reached the controller at " + options_.joined->address + " for " +
              std::to_string(static_cast<int64_t>(options_.patience_s)) + " s (--patience); " +
              paths_.logs() +
              " says why. Where another controller goes on with the run, come with another "
              "join token (`tidepool join-token RUN`, --join)");
        return DeadlineExceeded(
            options_.run_dir + ": no controller gave a sign of life for " +
            std::to_string(static_cast<int64_t>(options_.patience_s)) +
            " s (--patience); is the run directory the same on this host, and does `tidepool train` run?");
      }
      std::this_thread::sleep_for(kLook);
    }
    return End("told to end");
  }

 private:
  void Beat() {
    if (options_.beat.empty() || Clock::now() < next_beat_) return;
    next_beat_ = Clock::now() + kBeat;
    std::ofstream(options_.beat, std::ios::trunc);  // whoever looks at it misses one that cannot be written
  }

  [[nodiscard]] bool Finished() const {
    const nlohmann::json summary = ReadObject(paths_.summary());
    const auto finished = summary.find("finished");
    return finished != summary.end() && finished->is_boolean() && finished->get<bool>();
  }

  Status End(const std::string& why) {
    options_.say(why);
    launcher_.EndAll(Duration{0}, kEndPatience);
    // The weights that its workers shared go; a recovery copy stays for the worker that comes after a lost
    // one.
    if (shared_memory_.empty()) return OkStatus();
    for (const char* block : {"weights", kBaseBlock}) SharedBlock::Remove(shared_memory_, block);
    return OkStatus();
  }

  // Whether there is a controller, and whether it lives: it writes its status again and again, in the warm
  // start of a run too, which has workers of its own.
  void Look() {
    std::string signs;
    for (const std::string& file : {paths_.status(), storage::RunPaths(paths_.warm_start()).status()}) {
      std::error_code error;  // a file that is not there is a sign like another one
      signs += std::to_string(fs::last_write_time(file, error).time_since_epoch().count()) + " ";
    }
    if (signs != std::exchange(signs_, signs)) {
      heard_ = Clock::now();
      alive_ = looked_;
    }
    looked_ = true;
    const auto now = ReadController(paths_.control());
    if (now == controller_) return;
    controller_ = now;
    heard_ = Clock::now();
    alive_ = false;
    if (now) refused_ = Meet();
    heard_ = Clock::now();  // to look for GPUs may take longer than its patience
  }

  // Of a host that has joined: what it can know of the controller.
  Status MeetJoined() {
    const JoinedHost& joined = *options_.joined;
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(config_.cluster, options_.self_path));
    controller_ = Controller{joined.run_id, joined.address, 0, joined.shared_memory};
    for (const JoinedPlace& place : joined.places) ours_.insert(place.place);
    if (const auto host = AddressForOthers(joined.address); host.ok() && !joined.shared_memory.empty())
      shared_memory_ = SharedBlock::OfHost(joined.shared_memory, *host);
    std::error_code error;  // a log that cannot be written is named by who writes it
    fs::create_directories(paths_.logs(), error);
    options_.say("joined run " + joined.run_id + ", controller at " + joined.address);
    return OkStatus();
  }

  // A worker that reaches no controller ends long before kSettled.
  void LookAtWorkers() {
    const auto now = Clock::now();
    if (std::ranges::any_of(processes_,
                            [&](const auto& p) { return p.second.runs && now - p.second.since > kSettled; }))
      heard_ = now;
  }

  // Which places are ours with the controller that is there now.
  Status Meet() {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::ReadCheckedConfig(paths_.config()));
    config_ = loaded.config;
    const scheduler::ControllerOptions plan = SchedulerOptions(config_, 0);
    const int64_t devices = plan.device_workers(), hosts = (devices + options_.slots - 1) / options_.slots;
    if (options_.index >= hosts)
      return InvalidArgument("--index is " + std::to_string(options_.index) +
                             ", and cluster.slots: " + std::to_string(devices) + " with " +
                             std::to_string(options_.slots) + " a host (--slots) is work for " +
                             std::to_string(hosts) + " hosts, 0 to " + std::to_string(hosts - 1));
    const bool may_lack = config_.cluster.min_slots > 0;
    const int64_t least = may_lack ? config_.cluster.min_slots : devices;
    if (options_.hosts > 0 && options_.hosts * options_.slots < least)
      return FailedPrecondition(
          paths_.config() + ": " + (may_lack ? "cluster.min_slots" : "cluster.slots") + " is " +
          std::to_string(least) + ", and the allocation has " + std::to_string(options_.hosts) + " hosts (" +
          options_.hosts_said_by + ") with " + std::to_string(options_.slots) +
          " each (--slots); ask for more hosts, or resume the run with a lower cluster.min_slots");
    if (config_.cluster.launch_workers)
      return FailedPrecondition(
          paths_.config() +
          ": cluster.launch_workers is true, so the controller starts the workers itself; start "
          "it with cluster.launch_workers=false");
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(config_.cluster, options_.self_path));
    ours_.clear();
    for (int64_t place = 0; place < devices + plan.side_workers(); ++place) {
      const int64_t host = place < devices ? place / options_.slots : (place - devices) % hosts;
      if (host == options_.index) ours_.insert(place);
    }
    // Once: later what our workers hold is not free, and a run in its midst is not ended for a GPU that
    // fails.
    if (!std::exchange(looked_at_gpus_, true)) {
      Beat();  // the look may take long
      const int64_t first = FirstPlace();
      const Status gpus =
          CheckHostGpus(loaded, worker_path_, first, std::min(devices, first + options_.slots) - first);
      if (gpus.code() == StatusCode::kFailedPrecondition && !may_lack) return gpus;
      if (!gpus.ok()) options_.say(gpus.message());
    }
    for (const auto& [place, process] : processes_) {
      if (process.runs && !ours_.contains(place)) launcher_.Kill(place, SIGTERM);  // another host's now
    }
    if (const auto device = ReadCredentials(paths_.security() + "/device.token"); device.ok()) {
      const auto host = device->identity ? AddressForOthers(controller_->address)
                                         : AddressTowards(controller_->address);  // as the workers do
      if (host.ok() && !controller_->shared_memory.empty())
        shared_memory_ = SharedBlock::OfHost(controller_->shared_memory, *host);
    }
    seen_ = true;
    options_.say("controller at " + controller_->address);
    return OkStatus();
  }

  Status StartDue() {
    for (const int64_t place : ours_) {
      Process& process = processes_[place];
      if (process.started_for != *controller_) process.given_up.clear();
      if (process.runs || !process.given_up.empty() || Clock::now() < process.due) continue;
      const auto [argv, keys] = CommandOf(place);
      TP_RETURN_IF_ERROR(launcher_.Start(place, argv, paths_.logs() + "/" + NameOf(place) + ".log", keys));
      process.runs = true;
      process.started_for = *controller_;
      process.since = Clock::now();
      options_.say(NameOf(place) + " is started, process " + std::to_string(launcher_.Pid(place)));
    }
    return OkStatus();
  }

  [[nodiscard]] std::pair<std::vector<std::string>, Keys> CommandOf(int64_t place) const {
    if (options_.joined) {
      const JoinedPlace& joined = Joined(place);
      return {WorkerCommand(*options_.joined, joined, options_.self_path, worker_path_,
                            IdentityDir(options_.run_dir, place)),
              joined.store ? Keys::kOfStore : Keys::kNone};
    }
    const WorkersOfRun run{options_.self_path, worker_path_, options_.run_dir, controller_->run_id,
                           controller_->address};
    return {WorkerCommand(run, config_, place, FirstPlace()), KeysOf(config_, place)};
  }

  void Reap() {
    for (const Ended& ended : launcher_.Reap()) {
      Process& process = processes_[ended.place];
      process.runs = false;
      // It was told that its run is over: for the next controller it is started at once, and for the same one
      // only where that goes on.
      if (ended.in_order && options_.joined) {
        ours_.erase(ended.place);
        continue;
      }
      if (ended.in_order) {
        const bool same = controller_ == process.started_for;
        process.due = Clock::now() + (same ? kOrderly : Clock::duration::zero());
        process.pause = kFirst;
        continue;
      }
      if (ended.for_good()) {
        process.given_up = NameOf(ended.place) + ": " + ended.why;
        options_.say(process.given_up + "; another one would end so again, so none is started");
        continue;
      }
      if (Clock::now() - process.since > kSettled) process.pause = kFirst;
      process.due = Clock::now() + process.pause;
      options_.say(NameOf(ended.place) + ": " + ended.why + "; it is started again in " +
                   std::to_string(process.pause.count()) + " s");
      process.pause = std::min(2 * process.pause, std::chrono::seconds(kMost));
    }
  }

  // kFailedPrecondition: there is nothing that this host could do for the controller that is there.
  Status AllGivenUp() {
    std::string why;
    for (const int64_t place : ours_) {
      const Process& process = processes_[place];
      if (process.given_up.empty() || process.started_for != controller_) return OkStatus();
      why = process.given_up;
    }
    if (why.empty()) return OkStatus();
    return FailedPrecondition("no worker of this host can do its work, and none is started again: " + why);
  }

  // The first device place of this host.
  [[nodiscard]] int64_t FirstPlace() const { return options_.index * options_.slots; }
  // requires that this host has joined for it
  [[nodiscard]] const JoinedPlace& Joined(int64_t place) const {
    return *std::ranges::find(options_.joined->places, place, &JoinedPlace::place);
  }
  [[nodiscard]] std::string NameOf(int64_t place) const {
    return options_.joined ? Joined(place).name : PlaceName(config_, place);
  }

  const HostOptions& options_;
  const storage::RunPaths paths_;
  Launcher launcher_{/*outlive=*/false};
  std::optional<Controller> controller_;  // that control.json names
  JobConfig config_;                      // of its run, as is what follows
  std::string worker_path_;
  std::set<int64_t> ours_;
  std::string shared_memory_;  // folder of our workers in /dev/shm; empty: not known
  Status refused_;
  bool looked_at_gpus_ = false;
  std::map<int64_t, Process> processes_;
  Clock::time_point next_beat_;
  Clock::time_point heard_;  // the last sign of life of a controller
  std::string signs_;
  bool looked_ = false;  // signs_ is that of an earlier look
  bool alive_ = false;   // a sign has come since controller_ is there
  bool seen_ = false;    // there was a controller that we had work for
};

}  // namespace

Status RunHost(const HostOptions& options) { return Host(options).Run(); }

}  // namespace tidepool::workers
