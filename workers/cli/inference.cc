#include "workers/cli/inference.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "core/config/load.h"
#include "core/config/render.h"
#include "workers/cli/driven_worker.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
constexpr SlotId kSlot{0};
constexpr SlotEpoch kEpoch{1};
constexpr Version kVersion{0, 0};
constexpr auto kSilence = std::chrono::seconds(120);

}  // namespace

struct InferenceSession::Impl {
  InferenceOptions options;
  std::unique_ptr<DrivenWorker> worker;
  bool serving = false;
  Clock::time_point started;

  void Send(ToWorkerBody body) const { worker->Send(std::move(body)); }

  // Next message of the worker; waits with a deadline.
  StatusOr<FromWorkerBody> Receive(Clock::duration patience, const std::function<void()>& meanwhile) {
    const auto until = Clock::now() + patience;
    if (options.stop && options.stop()) return Aborted("stopped");
    while (worker->come.empty()) {
      if (meanwhile) meanwhile();
      TP_RETURN_IF_ERROR(worker->Listen(patience));
      if (worker->come.empty() && Clock::now() > until)
        return DeadlineExceeded("the worker did not answer in time: " + worker->Log());
    }
    FromWorkerBody body = std::move(worker->come.front());
    worker->come.pop_front();
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
    config::LoadedConfig loaded;
    loaded.config = options.job;
    TP_RETURN_IF_ERROR(config::LoadConfigText(config::ResolvedYaml(loaded), "generate").status());
    started = Clock::now();
    TP_ASSIGN_OR_RETURN(worker, DrivenWorker::Start({.kind = DrivenWorker::Kind::kDevice,
                                                     .argv = {options.worker_path, "run"},
                                                     .job = options.job,
                                                     .stop = options.stop}));
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
    welcome.slots = {kSlot};
    welcome.trains = false;
    welcome.together_ms = options.together_ms;
    welcome.model_dir = options.job.model.path;
    welcome.adapters = options.adapters;
    if (!worker->Welcome(std::move(welcome)))
      return Unavailable("the worker process is gone: " + worker->Log());
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
  TP_RETURN_IF_ERROR(impl_->worker->Listen(patience));
  std::vector<up::StepTokens> out;
  for (FromWorkerBody& body : std::exchange(impl_->worker->come, {})) {
    if (auto* step = std::get_if<up::StepTokens>(&body)) out.push_back(std::move(*step));
  }
  return out;
}

Status InferenceSession::Renew() { return impl_->worker->Listen(std::chrono::milliseconds(0)); }

void InferenceSession::Wake() { impl_->worker->Wake(); }

StatusOr<std::vector<Completion>> InferenceSession::Complete(
    const std::vector<Request>& requests,
    const std::function<void(size_t, const std::vector<int32_t>&)>& on_tokens,
    const std::function<bool()>& stop, const std::function<void(size_t, const Completion&)>& on_done) {
  TP_RETURN_IF_ERROR(impl_->Await({}));
  std::vector<Completion> out(requests.size());
  std::map<std::pair<SampleId, int32_t>, size_t> place;  // by attempt, which says the adapter
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
      const int32_t att = r.adapter - kOwnWeights;
      if (!place.emplace(std::pair(tid, att), next).second)
        return InvalidArgument("two requests have the ordinal " + std::to_string(r.ordinal));
      down::StartChunk c;
      c.tid = tid;
      c.att = att;
      c.adapter = r.adapter;
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
      const auto it = place.find({c.tid, c.att});
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
