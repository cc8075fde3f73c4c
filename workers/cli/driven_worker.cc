#include "workers/cli/driven_worker.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "core/config/load.h"
#include "core/config/render.h"
#include "workers/cli/session_folder.h"
#include "workers/controller/launcher.h"
#include "workers/net/attachments.h"
#include "workers/net/auth.h"
#include "workers/net/hub.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr double kPermit_s = 30;

}  // namespace

struct DrivenWorker::Impl {
  Options options;
  std::unique_ptr<SessionFolder> folder;  // token files and the worker's log
  std::string dir;                        // its path
  std::string run_id, config_yaml;
  Mailbox<std::optional<HubEvent>> inbox;  // nothing: Wake
  Launcher launcher{false};
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Attachments> attachments;
  Status lost = OkStatus();  // the worker: seen once
  uint64_t process = 0;      // the worker's
  SteadyClock::time_point started, renew;

  ~Impl() {
    if (attachments != nullptr) attachments->Send(0, down::Shutdown{"done"});
    launcher.EndAll(Duration{0}, std::chrono::seconds(1));
    if (hub != nullptr) hub->Stop();
  }

  Status Start() {
    TP_ASSIGN_OR_RETURN(SessionFolder made, SessionFolder::Make());
    folder = std::make_unique<SessionFolder>(std::move(made));
    dir = folder->path();
    run_id = std::filesystem::path(dir).filename().string();
    config::LoadedConfig loaded;
    loaded.config = options.job;
    config_yaml = config::ResolvedYaml(loaded);
    TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(dir + "/security"));
    HubOptions hub_options;
    hub_options.run_id = run_id;
    TP_ASSIGN_OR_RETURN(hub, Hub::Start(
                                 hub_options, tokens, [this](HubEvent e) { inbox.Put(std::move(e)); },
                                 [](int64_t, StepNumber, Incarnation,
                                    int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
                                   return NotFound("no batches here");
                                 }));
    const bool device = options.kind == Kind::kDevice;
    attachments = std::make_unique<Attachments>(
        AttachmentOptions{.ctl_epoch = 1,
                          .device_places = device ? 1 : 0,
                          .side_places = device ? 0 : 1,
                          .lost_after = FromSeconds(LostAfterSeconds(kPermit_s))},
        hub.get());
    std::vector<std::string> argv = options.argv;
    for (const std::string& word :
         {"--connect=" + hub->address(),
          "--token-file=" + dir + "/security/" + (device ? "device" : "reward") + ".token",
          "--run-id=" + run_id, std::string("--place=0")})
      argv.push_back(word);
    TP_RETURN_IF_ERROR(launcher.Start(0, argv, dir + "/worker.log"));
    started = SteadyClock::now();
    return OkStatus();
  }
};

DrivenWorker::DrivenWorker() : impl_(std::make_unique<Impl>()) {}
DrivenWorker::~DrivenWorker() = default;

StatusOr<std::unique_ptr<DrivenWorker>> DrivenWorker::Start(Options options) {
  std::unique_ptr<DrivenWorker> worker(new DrivenWorker());
  worker->impl_->options = std::move(options);
  TP_RETURN_IF_ERROR(worker->impl_->Start());
  return worker;
}

Status DrivenWorker::Listen(std::chrono::nanoseconds patience) {
  Impl& m = *impl_;
  if (m.options.stop && m.options.stop()) return Aborted("stopped");
  TP_RETURN_IF_ERROR(m.lost);
  const TimePoint now{SteadyClock::now() - m.started};
  if (SteadyClock::now() >= m.renew) {
    Attachments::Snapshot taken;
    m.attachments->Taken(taken);
    m.attachments->Acknowledge(taken);
    m.attachments->Renew();
    m.renew = SteadyClock::now() + std::chrono::milliseconds(300);
  }
  std::vector<Attachments::Event> events = m.attachments->Tick(now);
  for (std::optional<HubEvent>& event :
       m.inbox.TakeAll(std::min<std::chrono::nanoseconds>(patience, std::chrono::milliseconds(50)))) {
    if (!event) continue;
    for (auto& e : m.attachments->On(*std::move(event), now)) events.push_back(std::move(e));
  }
  for (Attachments::Event& event : events) {
    if (auto* arrived = std::get_if<Attachments::Arrived>(&event)) {
      m.process = arrived->hello.process;
      come.emplace_back(std::move(arrived->offer));
    } else if (auto* message = std::get_if<Attachments::Message>(&event)) {
      if (!std::holds_alternative<up::Heartbeat>(message->body)) come.push_back(std::move(message->body));
    } else {
      return m.lost = Unavailable("the worker process is gone: " + Log());
    }
  }
  if (!m.launcher.Reap().empty()) return m.lost = Unavailable("the worker process ended: " + Log());
  return OkStatus();
}

void DrivenWorker::Wake() { impl_->inbox.Put(std::nullopt); }

bool DrivenWorker::Welcome(down::Welcome welcome) {
  welcome.inc = {0};
  welcome.permit_s = kPermit_s;
  welcome.config_yaml = impl_->config_yaml;
  welcome.run_dir = impl_->dir;
  welcome.run_id = impl_->run_id;
  return impl_->attachments->Welcome(0, impl_->process, std::move(welcome));
}

void DrivenWorker::Send(ToWorkerBody body) { impl_->attachments->Send(0, std::move(body)); }

std::string DrivenWorker::Log() const {
  std::ifstream in(impl_->dir + "/worker.log");
  std::stringstream text;
  text << in.rdbuf();
  std::string all = text.str();
  return all.size() > 2000 ? all.substr(all.size() - 2000) : all;
}

}  // namespace tidepool::workers
