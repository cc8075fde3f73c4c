#include <cmath>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

void SampleFlow::BeginEpisode(const Request& r) {
  Request waiting = r;
  waiting.waiting_env = true;
  all_.rollouts.Add(waiting);
  episodes_.Add(r.tid, r.att, 0, now_);
}

// The policy has said something: the environment's turn. Its KV stays where it is while there is room.
void SampleFlow::TurnEnded(const Request& r) {
  all_.rollouts.WaitEnv(r.tid);
  episodes_.Add(r.tid, r.att, r.turn + 1, now_);
}

void SampleFlow::On(const event::EnvStepped& e) {
  if (!fleet_.IsLive(e.worker)) {
    all_.life.Refuse();
    return;
  }
  const Episodes::Result result = episodes_.Done(e, now_);
  if (result == Episodes::Result::kRefused) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  all_.workers.Progress(e.worker.worker);
  if (e.turn != 0) deaths_ = 0;  // that an episode begins proves little of its game
  if (result == Episodes::Result::kRetry) {
    out_.Warn(
        "env_retry",
        "turn " + std::to_string(e.turn) + " of sample " + ToString(e.tid) +
            (e.no_room ? " waits for its environment: " : " is played once more, its environment failed: ") +
            e.why,
        {{"tid", ToString(e.tid)}, {"worker", options_.NameOf(e.worker)}});
    return;
  }
  event::EnvStepped step = e;
  if (step.outcome == GradeOutcome::kOk && !std::isfinite(step.reward)) step.outcome = GradeOutcome::kData;
  if (e.tid.sample == SampleId::kRowSample) {
    RowStepped(step);
    return;
  }
  const Request* found = all_.rollouts.requests().Find(e.tid);
  if (found == nullptr) {
    // Its tokens are complete, only its reward is missing: it is of an earlier life, or its worker died.
    episodes_.Remove(e.tid);
    Grade({e.worker, e.tid, e.att, step.outcome, step.reward, step.rewards, step.why});
    return;
  }
  const Request r = *found;
  if (step.outcome != GradeOutcome::kOk) {
    EpisodeLost(r, step.outcome, step.why);
    return;
  }
  // An observation that leaves no room for an answer is of no use.
  if (!step.done && (r.turn == 0 || r.generated + step.observation_tokens < r.max_new)) {
    out_.Do(command::AppendObservation{e.tid, e.att, e.turn});
    all_.rollouts.Resume(e.tid, step.observation_tokens);
    return;
  }
  EpisodeEnded(r, step, step.done ? EndStatus::kOk : EndStatus::kTruncated);
}

void SampleFlow::EpisodeEnded(const Request& r, const event::EnvStepped& e, EndStatus status) {
  const event::Graded graded{e.worker, r.tid, r.att, GradeOutcome::kOk, e.reward, e.rewards, e.why};
  episodes_.Remove(r.tid);
  // Before the engine is told to forget the group: it may write the payload, and has the prompt.
  if (!r.tid.is_eval()) Store(r, status, graded);  // GRADED follows ENQ
  all_.rollouts.Complete(r);
  if (r.tid.is_eval()) all_.evaluations.Graded(graded);
}

// A failure masks its sample; it is never a reward of 0.
void SampleFlow::EpisodeLost(const Request& r, GradeOutcome outcome, const std::string& why) {
  const bool infra = outcome == GradeOutcome::kInfra;
  if (!r.tid.is_eval()) CountOutcome(outcome, why);
  if (all_.life.over()) return;
  out_.Warn(infra ? "env_infra" : "data_invalid",
            "sample " + ToString(r.tid) + " is dropped in turn " + std::to_string(r.turn) +
                (infra ? ", its environment failed: " : ", it cannot be played: ") + why +
                (r.tid.is_eval() ? "" : LostShare(outcome)),
            {{"tid", ToString(r.tid)}});
  if (r.tid.is_eval()) {
    episodes_.Remove(r.tid);
    all_.rollouts.Remove(r);
    all_.evaluations.Lost(r.tid, r.att, why);
    return;
  }
  DropSample(r.tid, infra ? DropReason::kEnvInfra : DropReason::kDataInvalid);
}

void SampleFlow::Tick() {
  for (const Episodes::Stuck& s : episodes_.TakeStuck(now_)) {
    all_.workers.Replace(s.worker, "turn " + std::to_string(s.turn) + " of sample " + ToString(s.tid) +
                                       " did not end within its deadline (nothing came back for " +
                                       std::to_string(std::llround(Seconds(s.silent))) + " s)");
    if (all_.life.over()) return;
  }
  for (const SampleId& tid : episodes_.GivenUp(now_)) {
    if (all_.life.over()) return;
    EpisodeGivenUp(tid);
  }
}

void SampleFlow::EpisodeGivenUp(const SampleId& tid) {
  const std::string why =
      "the environment did not answer in time (environment.step_timeout_s, reset_timeout_s, "
      "episode_timeout_s, max_retries)";
  if (tid.sample == SampleId::kRowSample) {
    RowStepped({{}, tid, 0, 0, GradeOutcome::kInfra, 0, false, 0, {}, why});
    return;
  }
  if (const Request* found = all_.rollouts.requests().Find(tid); found != nullptr) {
    EpisodeLost(Request(*found), GradeOutcome::kInfra, why);
    return;
  }
  episodes_.Remove(tid);
  const Sample* s = state_.ledger().Find(tid);
  if (s == nullptr || (s->phase != SamplePhase::kAwaiting && !finishing_.contains(tid))) return;
  CountOutcome(GradeOutcome::kInfra, why);
  if (all_.life.over()) return;
  out_.Warn("env_infra",
            "sample " + ToString(tid) + " is dropped, its environment failed: " + why +
                LostShare(GradeOutcome::kInfra),
            {{"tid", ToString(tid)}});
  DropSample(tid, DropReason::kEnvInfra);
}

}  // namespace tidepool::scheduler
