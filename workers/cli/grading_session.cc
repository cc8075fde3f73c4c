#include "workers/cli/grading_session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

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

struct GradingSession::Impl {
  GradingOptions options;
  std::unique_ptr<SessionFolder> folder;  // token files and the worker's log
  std::string run_id, config_yaml;
  Mailbox<HubEvent> inbox;
  Launcher launcher{false};
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Attachments> attachments;
  bool welcomed = false;
  std::vector<up::Graded> graded;  // that were not asked for yet
  SteadyClock::time_point started, renew;

  ~Impl() {
    if (attachments != nullptr) attachments->Send(0, down::Shutdown{"done"});
    launcher.EndAll(Duration{0}, std::chrono::seconds(1));
    if (hub != nullptr) hub->Stop();
  }

  std::string Log() const {
    std::ifstream in(folder->path() + "/worker.log");
    std::stringstream text;
    text << in.rdbuf();
    const std::string all = text.str();
    return all.substr(all.size() > 2000 ? all.size() - 2000 : 0);
  }

  Status Start() {
    TP_ASSIGN_OR_RETURN(SessionFolder made, SessionFolder::Make());
    folder = std::make_unique<SessionFolder>(std::move(made));
    const std::string dir = folder->path();
    run_id = std::filesystem::path(dir).filename().string();
    config::LoadedConfig loaded;
    loaded.config = options.job;
    loaded.config.observe.trace = false;
    loaded.config.observe.metrics_bind.clear();
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
    attachments = std::make_unique<Attachments>(
        AttachmentOptions{.ctl_epoch = 1,
                          .device_places = 0,
                          .side_places = 1,
                          .lost_after = FromSeconds(LostAfterSeconds(kPermit_s))},
        hub.get());
    std::vector<std::string> argv = {options.self_path, "reward-worker"};
    if (options.job.reward.by_model()) argv = {options.worker_path, "reward"};
    for (const std::string& word :
         {"--connect=" + hub->address(), "--token-file=" + dir + "/security/reward.token",
          "--run-id=" + run_id, std::string("--place=0")})
      argv.push_back(word);
    started = SteadyClock::now();
    return launcher.Start(0, argv, dir + "/worker.log");
  }

  // Takes what has come; waits for something for a moment.
  Status Listen(std::chrono::milliseconds patience) {
    if (options.stop && options.stop()) return Aborted("stopped");
    const TimePoint now{SteadyClock::now() - started};
    std::vector<Attachments::Event> events;
    for (HubEvent& event : inbox.TakeAll(patience)) {
      for (auto& e : attachments->On(std::move(event), now)) events.push_back(std::move(e));
    }
    for (auto& e : attachments->Tick(now)) events.push_back(std::move(e));
    for (Attachments::Event& event : events) {
      if (auto* arrived = std::get_if<Attachments::Arrived>(&event)) {
        down::Welcome welcome;
        welcome.inc = {0};
        welcome.permit_s = kPermit_s;
        welcome.config_yaml = config_yaml;
        welcome.run_dir = folder->path();
        welcome.run_id = run_id;
        welcomed = attachments->Welcome(0, arrived->hello.process, std::move(welcome));
      } else if (auto* message = std::get_if<Attachments::Message>(&event)) {
        if (auto* verdict = std::get_if<up::Graded>(&message->body)) graded.push_back(std::move(*verdict));
      } else {
        return Unavailable("the reward worker is gone: " + Log());
      }
    }
    if (!launcher.Reap().empty()) return Unavailable("the reward worker ended: " + Log());
    if (SteadyClock::now() < renew) return OkStatus();
    Attachments::Snapshot taken;
    attachments->Taken(taken);
    attachments->Acknowledge(taken);
    attachments->Renew();
    renew = SteadyClock::now() + std::chrono::milliseconds(300);
    return OkStatus();
  }
};

GradingSession::GradingSession() : impl_(std::make_unique<Impl>()) {}
GradingSession::~GradingSession() = default;

StatusOr<std::unique_ptr<GradingSession>> GradingSession::Start(const GradingOptions& options) {
  std::unique_ptr<GradingSession> session(new GradingSession());
  session->impl_->options = options;
  TP_RETURN_IF_ERROR(session->impl_->Start());
  return session;
}

Status GradingSession::Renew() { return impl_->Listen(std::chrono::milliseconds(0)); }

StatusOr<std::vector<up::Graded>> GradingSession::Grade(std::vector<tasks::RewardInput> inputs) {
  const RewardConfig& reward = impl_->options.job.reward;
  double silence_s = 30 + (reward.by_model() ? reward.load_timeout_s : 0);
  for (const RewardFunction& f : reward.functions) silence_s += f.timeout_s;
  const auto silence =
      std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(silence_s));
  constexpr size_t kWindow = 1024;  // as many as lie in the worker
  std::vector<up::Graded> out(inputs.size());
  size_t next = 0, done = 0;
  for (auto until = SteadyClock::now() + silence; done < inputs.size();) {
    for (; impl_->welcomed && next < inputs.size() && next - done < kWindow; ++next) {
      down::Grade grade;
      grade.tid = {static_cast<int64_t>(next), 0, 0};
      grade.input = std::move(inputs[next]);
      impl_->attachments->Send(0, std::move(grade));
    }
    TP_RETURN_IF_ERROR(impl_->Listen(std::chrono::milliseconds(50)));
    for (up::Graded& verdict : std::exchange(impl_->graded, {})) {
      until = SteadyClock::now() + silence;
      const auto at = static_cast<size_t>(verdict.tid.ordinal);
      if (at >= out.size()) continue;
      out[at] = std::move(verdict);
      ++done;
    }
    if (SteadyClock::now() > until)
      return DeadlineExceeded("the reward worker does not answer: " + impl_->Log());
  }
  return out;
}

}  // namespace tidepool::workers
