#include "workers/controller/host.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/places.h"
#include "core/config/load.h"
#include "core/storage/run_directory.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
#include "workers/controller/scheduler_options.h"
#include "workers/controller/worker_command.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(200);  // between two looks at files and processes
constexpr auto kFirst = std::chrono::seconds(1);  // before a worker is started again, doubled up to kMost
constexpr auto kMost = std::chrono::seconds(30);
constexpr auto kSettled = std::chrono::seconds(60);      // one that has lived so long begins at kFirst again
constexpr auto kEndPatience = std::chrono::seconds(10);  // for workers to write out what they hold

nlohmann::json ReadObject(const std::string& path) {
  std::ifstream in(path);
  auto json = in ? nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false) : nlohmann::json();
  return json.is_object() ? json : nlohmann::json::object();
}

struct Controller {
  std::string run_id, address;
  int64_t pid = 0;
  bool operator==(const Controller&) const = default;
};

std::optional<Controller> ReadController(const std::string& control) {
  const nlohmann::json json = ReadObject(control);
  Controller c{json.value("run_id", ""), json.value("address", ""), json.value("pid", int64_t{0})};
  return c.run_id.empty() || c.address.empty() ? std::nullopt : std::optional(std::move(c));
}

struct Place {
  bool runs = false, done = false;
  Clock::time_point since, due;  // when it was started; when it may be started
  std::chrono::seconds pause = kFirst;
};

class Host {
 public:
  explicit Host(const HostOptions& options) : options_(options), paths_(options.run_dir) {}

  Status Run() {
    heard_ = Clock::now();
    while (!options_.stop()) {
      if (const auto controller = ReadController(paths_.control())) TP_RETURN_IF_ERROR(Serve(*controller));
      Reap();
      if (served_ && places_.empty() && Finished()) return OkStatus();
      // One that was killed leaves its file: workers that find nobody there end before they have settled.
      if (std::ranges::any_of(places_, [](const auto& p) {
            return p.second.runs && Clock::now() - p.second.since > kSettled;
          }))
        heard_ = Clock::now();
      if (Clock::now() - heard_ > std::chrono::duration<double>(options_.patience_s))
        return DeadlineExceeded(
            paths_.control() + ": no controller came within " +
            std::to_string(static_cast<int64_t>(options_.patience_s)) +
            " s (--patience); is the run directory the same on this host, and does `tidepool train` run?");
      std::this_thread::sleep_for(kLook);
    }
    options_.say("told to end");
    launcher_.EndAll(Duration{0}, kEndPatience);
    return OkStatus();
  }

 private:
  [[nodiscard]] bool Finished() const { return ReadObject(paths_.summary()).value("finished", false); }

  // Starts what is due.
  Status Serve(const Controller& controller) {
    if (controller != controller_) {
      TP_RETURN_IF_ERROR(Meet(controller));
    }
    for (auto& [place, at] : places_) {
      if (at.runs || at.done || Clock::now() < at.due) continue;
      const WorkersOfRun run{options_.self_path, worker_path_, options_.run_dir, controller.run_id,
                             controller.address};
      TP_RETURN_IF_ERROR(launcher_.Start(place, WorkerCommand(run, config_, place),
                                         paths_.logs() + "/" + NameOf(place) + ".log"));
      at.runs = true;
      at.since = Clock::now();
      options_.say(NameOf(place) + " is started, process " + std::to_string(launcher_.Pid(place)));
    }
    return OkStatus();
  }

  // A controller that is new, or came back at another address: which places are ours.
  Status Meet(const Controller& controller) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::ReadCheckedConfig(paths_.config()));
    config_ = loaded.config;
    const scheduler::ControllerOptions plan = SchedulerOptions(config_, 0);
    const int64_t devices = plan.device_workers(), hosts = (devices + options_.slots - 1) / options_.slots;
    if (options_.index >= hosts)
      return InvalidArgument("--index is " + std::to_string(options_.index) +
                             ", and cluster.slots: " + std::to_string(devices) + " with " +
                             std::to_string(options_.slots) + " a host (--slots) is work for " +
                             std::to_string(hosts) + " hosts, 0 to " + std::to_string(hosts - 1));
    if (config_.cluster.launch_workers)
      return FailedPrecondition(
          paths_.config() +
          ": cluster.launch_workers is true, so the controller starts the workers itself; start it with "
          "cluster.launch_workers=false");
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(config_.cluster, options_.self_path));
    for (int64_t place = 0; place < devices + plan.side_workers(); ++place) {
      const int64_t host = place < devices ? place / options_.slots : (place - devices) % hosts;
      if (host == options_.index) {
        Place& at = places_[place];
        at.done = false;  // a controller that came back has work again
        if (!at.runs) at.due = Clock::now();
      }
    }
    controller_ = controller;
    heard_ = Clock::now();
    options_.say("controller at " + controller.address);
    return OkStatus();
  }

  void Reap() {
    for (const Ended& ended : launcher_.Reap()) {
      Place& at = places_[ended.place];
      at.runs = false;
      served_ = served_ || ended.in_order;
      at.done = ended.in_order;
      if (ended.in_order) continue;
      if (Clock::now() - at.since > kSettled) at.pause = kFirst;
      at.due = Clock::now() + at.pause;
      options_.say(NameOf(ended.place) + ": " + ended.why + "; it is started again in " +
                   std::to_string(at.pause.count()) + " s");
      at.pause = std::min(2 * at.pause, std::chrono::seconds(kMost));
    }
    // All have ended in order: it is for the next controller to want them again.
    if (std::ranges::all_of(places_, [](const auto& p) { return p.second.done; })) places_.clear();
  }

  [[nodiscard]] std::string NameOf(int64_t place) const { return PlaceName(config_, place); }

  const HostOptions& options_;
  const storage::RunPaths paths_;
  Launcher launcher_{/*outlive=*/false};
  JobConfig config_;
  std::string worker_path_;
  Controller controller_;  // that the places were taken from
  std::map<int64_t, Place> places_;
  Clock::time_point heard_;  // when there was last a controller, as far as is known here
  bool served_ = false;      // some worker of ours has ended in order
};

}  // namespace

Status RunHost(const HostOptions& options) { return Host(options).Run(); }

}  // namespace tidepool::workers
