#include "workers/cli/inference.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "core/config/load.h"
#include "core/config/render.h"
#include "workers/cli/session_folder.h"
#include "workers/controller/launcher.h"
#include "workers/net/auth.h"
#include "workers/net/hub.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
constexpr SlotId kSlot{0};
constexpr SlotEpoch kEpoch{1};
constexpr Version kVersion{0, 0};
constexpr double kPermitSeconds = 30;
constexpr auto kSilence = std::chrono::seconds(120);

}  // namespace

struct InferenceSession::Impl {
  InferenceOptions options;
  std::unique_ptr<SessionFolder> folder;  // token files and the worker's log
  std::string dir;                        // its path
  std::string config_yaml;
  std::string run_id;
  Mailbox<std::optional<HubEvent>> inbox;  // nothing: Wake
  Launcher launcher{false};
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Attachments> attachments;
  std::deque<FromWorkerBody> pending;
  bool serving = false;
  Status lost = OkStatus();  // the worker: seen once
  uint64_t process = 0;      // the worker's
  Clock::time_point started, renew;

  ~Impl() {
    if (attachments != nullptr) attachments->Send(0, down::Shutdown{"done"});
    launcher.EndAll(Duration{0}, std::chrono::seconds(1));
    if (hub != nullptr) hub->Stop();
  }

  std::string Log() const {
    std::ifstream in(dir + "/worker.log");
    std::stringstream text;
    text << in.rdbuf();
    std::string all = text.str();
    return all.size() > 2000 ? all.substr(all.size() - 2000) : all;
  }

  template <typename Body>
  void Send(Body body) {
    attachments->Send(0, std::move(body));
  }

  // Takes into `pending` what has come; waits for something so long at most, and not at all for long.
  Status Listen(Clock::duration patience) {
    if (options.stop && options.stop()) return Aborted("stopped");
    TP_RETURN_IF_ERROR(lost);
    const TimePoint now{Clock::now() - started};
    if (Clock::now() >= renew) {
      Attachments::Snapshot taken;
      attachments->Taken(taken);
      attachments->Acknowledge(taken);
      attachments->Renew();
      renew = Clock::now() + std::chrono::milliseconds(300);
    }
    std::vector<Attachments::Event> events = attachments->Tick(now);
    for (std::optional<HubEvent>& event :
         inbox.TakeAll(std::min<Clock::duration>(patience, std::chrono::milliseconds(50)))) {
      if (!event) continue;
      for (auto& e : attachments->On(*std::move(event), now)) events.push_back(std::move(e));
    }
    for (Attachments::Event& event : events) {
      if (auto* arrived = std::get_if<Attachments::Arrived>(&event)) {
        process = arrived->hello.process;
        pending.emplace_back(std::move(arrived->offer));
      } else if (auto* message = std::get_if<Attachments::Message>(&event)) {
        if (!std::holds_alternative<up::Heartbeat>(message->body))
          pending.push_back(std::move(message->body));
      } else {
        return lost = Unavailable("the worker process is gone: " + Log());
      }
    }
    if (!launcher.Reap().empty()) return lost = Unavailable("the worker process ended: " + Log());
    return OkStatus();
  }

  // Next message of the worker; waits with a deadline.
  StatusOr<FromWorkerBody> Receive(Clock::duration patience, const std::function<void()>& meanwhile) {
    const auto until = Clock::now() + patience;
    if (options.stop && options.stop()) return Aborted("stopped");
    while (pending.empty()) {
      if (meanwhile) meanwhile();
      TP_RETURN_IF_ERROR(Listen(patience));
      if (pending.empty() && Clock::now() > until)
        return DeadlineExceeded("the worker did not answer in time: " + Log());
    }
    FromWorkerBody body = std::move(pending.front());
    pending.pop_front();
    return body;
  }

  template <typename Body>
  StatusOr<Body> Expect(Clock::duration patience, const std::function<void()>& meanwhile = {}) {
    while (true) {
      TP_ASSIGN_OR_RETURN(FromWorkerBody body, Receive(patience, meanwhile));
      if (auto* wanted = std::get_if<Body>(&body)) return std::move(*wanted);
    }
  }

  Status Start() {
    TP_ASSIGN_OR_RETURN(SessionFolder made, SessionFolder::Make());
    folder = std::make_unique<SessionFolder>(std::move(made));
    dir = folder->path();
    config::LoadedConfig loaded;
    loaded.config = options.job;
    config_yaml = config::ResolvedYaml(loaded);
    TP_RETURN_IF_ERROR(config::LoadConfigText(config_yaml, "generate").status());
    TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(dir + "/security"));
    HubOptions hub_options;
    hub_options.run_id = std::filesystem::path(dir).filename().string();
    TP_ASSIGN_OR_RETURN(hub, Hub::Start(
                                 hub_options, tokens, [this](HubEvent e) { inbox.Put(std::move(e)); },
                                 [](int64_t, StepNumber, Incarnation,
                                    int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
                                   return NotFound("no batches here");
                                 }));
    attachments = std::make_unique<Attachments>(
        AttachmentOptions{.ctl_epoch = 1,
                          .device_places = 1,
                          .side_places = 0,
                          .lost_after = FromSeconds(LostAfterSeconds(kPermitSeconds))},
        hub.get());
    TP_RETURN_IF_ERROR(launcher.Start(
        0,
        {options.worker_path, "run", "--connect=" + hub->address(),
         "--token-file=" + dir + "/security/device.token", "--run-id=" + hub_options.run_id, "--place=0"},
        dir + "/worker.log"));
    started = Clock::now();
    run_id = hub_options.run_id;
    return OkStatus();
  }

  // The worker serves, in the time that a start may take.
  Status Await(const std::function<void()>& meanwhile) {
    if (serving) return OkStatus();
    const auto patience = started +
                          std::chrono::milliseconds(static_cast<int64_t>(options.start_timeout_s * 1000)) -
                          Clock::now();
    TP_RETURN_IF_ERROR(Expect<up::Offer>(patience, meanwhile).status());
    down::Welcome welcome;
    welcome.inc = {0};
    welcome.slots = {kSlot};
    welcome.trains = false;
    welcome.together_ms = options.together_ms;
    welcome.permit_s = kPermitSeconds;
    welcome.config_yaml = config_yaml;
    welcome.run_dir = dir;
    welcome.run_id = run_id;
    welcome.model_dir = options.job.model.path;
    welcome.shared_memory = options.shared_memory;
    if (!attachments->Welcome(0, process, std::move(welcome)))
      return Unavailable("the worker process is gone: " + Log());
    Send(down::InitState{.slot = kSlot});
    TP_ASSIGN_OR_RETURN(const up::StateReady ready, Expect<up::StateReady>(patience, meanwhile));
    if (!ready.error.empty()) return InvalidArgument(ready.error);
    Send(down::Grant{.slot = kSlot, .epoch = kEpoch, .role = Role::kRollout});
    TP_RETURN_IF_ERROR(Expect<up::Granted>(patience, meanwhile).status());
    Send(down::Load{kSlot, kVersion, ready.weights_digest, "", /*alias=*/true});
    TP_ASSIGN_OR_RETURN(const up::Loaded loaded, Expect<up::Loaded>(patience, meanwhile));
    if (!loaded.error.empty()) return InvalidArgument(loaded.error);
    Send(down::Admit{.slot = kSlot, .v = kVersion});
    serving = true;
    return OkStatus();
  }
};

InferenceSession::InferenceSession() : impl_(std::make_unique<Impl>()) {}
InferenceSession::~InferenceSession() = default;

StatusOr<std::unique_ptr<InferenceSession>> InferenceSession::Start(const InferenceOptions& options) {
  std::unique_ptr<InferenceSession> session(new InferenceSession());
  session->impl_->options = options;
  TP_RETURN_IF_ERROR(session->impl_->Start());
  return session;
}

Status InferenceSession::Await(const std::function<void()>& meanwhile) { return impl_->Await(meanwhile); }

void InferenceSession::Send(down::StartChunk chunk) {
  chunk.slot = kSlot;
  chunk.epoch = kEpoch;
  chunk.version = kVersion;
  impl_->Send(std::move(chunk));
}

void InferenceSession::Drop(const SampleId& tid, int32_t att) {
  impl_->Send(down::CancelChunk{.slot = kSlot, .tid = tid, .att = att});
}

StatusOr<std::vector<up::StepTokens>> InferenceSession::Wait(std::chrono::milliseconds patience) {
  TP_RETURN_IF_ERROR(impl_->Listen(patience));
  std::vector<up::StepTokens> out;
  for (FromWorkerBody& body : std::exchange(impl_->pending, {})) {
    if (auto* step = std::get_if<up::StepTokens>(&body)) out.push_back(std::move(*step));
  }
  return out;
}

Status InferenceSession::Renew() { return impl_->Listen(std::chrono::milliseconds(0)); }

void InferenceSession::Wake() { impl_->inbox.Put(std::nullopt); }

StatusOr<std::vector<Completion>> InferenceSession::Complete(
    const std::vector<Request>& requests,
    const std::function<void(size_t, const std::vector<int32_t>&)>& on_tokens,
    const std::function<bool()>& stop, const std::function<void(size_t, const Completion&)>& on_done) {
  TP_RETURN_IF_ERROR(impl_->Await({}));
  std::vector<Completion> out(requests.size());
  std::map<SampleId, size_t> place;
  size_t next = 0;
  size_t done = 0;
  // A window, so that a large file does not stand in the worker's memory at once.
  const size_t window =
      static_cast<size_t>(std::max<int64_t>(impl_->options.job.rollout.max_concurrent, 1)) * 2;
  while (done < requests.size()) {
    while (next < requests.size() && next - done < window) {
      const Request& r = requests[next];
      const int64_t room = impl_->options.max_position - static_cast<int64_t>(r.prompt.size());
      if (room < 1) {
        out[next].error = "the prompt has " + std::to_string(r.prompt.size()) +
                          " tokens, and the model has " + std::to_string(impl_->options.max_position) +
                          " positions for prompt and answer together; shorten the prompt";
        if (on_done) on_done(next, out[next]);
        ++next, ++done;
        continue;
      }
      const SampleId tid{r.ordinal, 0, r.greedy ? SampleId::kEvalSample : r.sample};
      if (!place.emplace(tid, next).second)
        return InvalidArgument("two requests have the ordinal " + std::to_string(r.ordinal));
      down::StartChunk c;
      c.tid = tid;
      c.gid = GroupId{r.ordinal};
      c.prompt = r.prompt;
      c.chunk_tokens = c.max_new_tokens = std::min(room, impl_->options.job.rollout.max_new_tokens);
      if (r.max_new_tokens > 0)
        c.chunk_tokens = c.max_new_tokens = std::min(c.max_new_tokens, r.max_new_tokens);
      c.greedy = r.greedy;
      Send(std::move(c));
      ++next;
    }
    if (done == requests.size()) break;
    if (stop && stop()) return Aborted("stopped");
    TP_ASSIGN_OR_RETURN(const up::StepTokens step, impl_->Expect<up::StepTokens>(kSilence));
    for (const up::ChunkDelta& c : step.chunks) {
      const auto it = place.find(c.tid);
      if (it == place.end()) continue;
      Completion& completion = out[it->second];
      completion.tokens.Append(c.tokens);
      if (on_tokens && c.tokens.size() > 0) on_tokens(it->second, c.tokens.ids);
      if (!c.ended) continue;
      using scheduler::event::ChunkEnd;
      completion.ended = c.end == ChunkEnd::kEos || c.end == ChunkEnd::kStop;
      if (!completion.ended && c.end != ChunkEnd::kLength && c.end != ChunkEnd::kChunkLimit)
        completion.error = c.why.empty() ? "the worker gave it up" : c.why;
      if (on_done) on_done(it->second, completion);
      impl_->Send(down::ForgetGroup{.gid = {c.tid.ordinal}});
      place.erase(it);
      ++done;
    }
  }
  return out;
}

}  // namespace tidepool::workers
