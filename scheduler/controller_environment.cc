// Multi-turn samples: turns of the policy between turns of an environment.

#include <cmath>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

void Controller::Impl::PrepareRow(const GroupKey& key, GroupId gid) {
  if (environment) {
    episodes.Add({key.ordinal, key.issue, SampleId::kRowSample}, 0, 0, now);
  } else {
    out.Do(command::PrepareRow{key.ordinal, key.issue, gid});
  }
}

void Controller::Impl::BeginEpisode(const Request& r) {
  Request waiting = r;
  waiting.waiting_env = true;
  dispatcher.Add(waiting);
  episodes.Add(r.tid, r.att, 0, now);
}

// The policy has said something: the environment's turn. Its KV stays where it is while there is room.
void Controller::Impl::TurnEnded(const Request& r) {
  dispatcher.WaitEnv(r.tid);
  episodes.Add(r.tid, r.att, r.turn + 1, now);
}

void Controller::Impl::On(const event::EnvStepped& e) {
  if (!health.IsCurrent(e.worker)) {
    Refuse();
    return;
  }
  const Episodes::Result result = episodes.Done(e);
  if (result == Episodes::Result::kRefused) {
    Refuse();
    return;
  }
  Moved();
  health.Progress(e.worker.worker, now);
  if (result == Episodes::Result::kRetry) {
    out.Warn("tid=" + ToString(e.tid) + " event=env_infra retry=1 turn=" + std::to_string(e.turn) +
             " worker=" + ToString(e.worker) + " why=\"" + e.why + "\"");
    return;
  }
  event::EnvStepped step = e;
  if (step.outcome == GradeOutcome::kOk && !std::isfinite(step.reward)) step.outcome = GradeOutcome::kData;
  if (e.tid.sample == SampleId::kRowSample) {
    RowStepped(step);
    return;
  }
  const Request* found = dispatcher.Find(e.tid);
  if (found == nullptr) {  // its tokens are complete, only its reward is missing: of an earlier life, or its
                           // worker died
    episodes.Remove(e.tid);
    const event::Graded graded{e.worker, e.tid, e.att, step.outcome, step.reward, step.rewards, step.why};
    const auto it = finishing.find(e.tid);
    if (it != finishing.end()) {
      it->second.graded = graded;
    } else {
      TakeGrade(e.tid, graded);
    }
    return;
  }
  const Request r = *found;
  if (step.outcome != GradeOutcome::kOk) {
    EpisodeLost(r, step.outcome, step.why);
    return;
  }
  // An observation that leaves no room for an answer is of no use.
  if (!step.done && (r.turn == 0 || r.generated + step.observation_tokens < r.max_new)) {
    out.Do(command::AppendObservation{e.tid, e.att, e.turn});
    dispatcher.Resume(e.tid, step.observation_tokens, options.config.environment.max_turn_tokens);
    return;
  }
  EpisodeEnded(r, step, step.done ? EndStatus::kOk : EndStatus::kTruncated);
}

// The reset that makes a group's prompt.
void Controller::Impl::RowStepped(const event::EnvStepped& e) {
  episodes.Remove(e.tid);
  const GroupKey key{e.tid.ordinal, e.tid.issue};
  if (!preparing.contains(key)) {
    Refuse();
    return;
  }
  if (e.outcome == GradeOutcome::kOk) {
    out.Do(command::AppendObservation{e.tid, e.att, 0});
    On(event::RowReady{key.ordinal, key.issue, e.observation_tokens});
    return;
  }
  const bool infra = e.outcome == GradeOutcome::kInfra;
  CountOutcome(infra);
  if (!finished) DropRow(key, infra ? DropReason::kEnvInfra : DropReason::kDataInvalid, e.why);
}

void Controller::Impl::EpisodeEnded(const Request& r, const event::EnvStepped& e, EndStatus status) {
  const event::Graded graded{e.worker, r.tid, r.att, GradeOutcome::kOk, e.reward, e.rewards, e.why};
  episodes.Remove(r.tid);
  dispatcher.LearnLength(r.tid);
  dispatcher.Remove(r.tid);
  if (!dispatcher.HasRequests(r.gid)) GroupDone(r.gid);
  if (r.tid.is_eval()) {
    evaluation.Graded(r.tid, GradeOutcome::kOk,
                      graded.rewards.empty() ? graded.reward : graded.rewards.front().second);
    out.Do(command::DiscardTokens{r.tid, r.att});
    return;
  }
  out.Record(record::End{r.tid, r.att, status});
  finishing[r.tid] = {r.att, r.v_min, r.v_max, r.generated, graded};  // GRADED follows ENQ
  tokens_kept.try_emplace(r.tid);
  out.Do(command::StorePayload{r.tid, r.att});
}

// A failure masks its sample; it is never a reward of 0.
void Controller::Impl::EpisodeLost(const Request& r, GradeOutcome outcome, const std::string& why) {
  const bool infra = outcome == GradeOutcome::kInfra;
  out.Warn("tid=" + ToString(r.tid) + " event=" + (infra ? "env_infra" : "data_invalid") +
           " turn=" + std::to_string(r.turn) + " why=\"" + why + "\"");
  if (r.tid.is_eval()) {
    episodes.Remove(r.tid);
    dispatcher.Remove(r.tid);
    if (!dispatcher.HasRequests(r.gid)) GroupDone(r.gid);
    evaluation.Graded(r.tid, outcome, 0);
    out.Do(command::DiscardTokens{r.tid, r.att});
    return;
  }
  CountOutcome(infra);
  if (finished) return;
  DropSample(r.tid, infra ? DropReason::kEnvInfra : DropReason::kDataInvalid);
}

void Controller::Impl::CheckEpisodes() {
  for (const WorkerRef& ref : episodes.TakeStuck(now)) {
    Replace(ref, "a turn of an episode did not end within its deadline");
    if (finished) return;
  }
  for (const SampleId& tid : episodes.GivenUp(now)) {
    if (finished) return;
    const std::string why =
        "the environment did not answer in time (environment.step_timeout_s, reset_timeout_s, "
        "episode_timeout_s, max_retries)";
    if (tid.sample == SampleId::kRowSample) {
      RowStepped({{}, tid, 0, 0, GradeOutcome::kInfra, 0, false, 0, {}, why});
      continue;
    }
    const Request* found = dispatcher.Find(tid);
    if (found != nullptr) {
      const Request r = *found;
      EpisodeLost(r, GradeOutcome::kInfra, why);
    } else {
      episodes.Remove(tid);
      const Sample* s = state.ledger().Find(tid);
      if (s == nullptr || (s->phase != SamplePhase::kAwaiting && !finishing.contains(tid))) continue;
      out.Warn("tid=" + ToString(tid) + " event=env_infra why=\"" + why + "\"");
      CountOutcome(true);
      if (!finished) DropSample(tid, DropReason::kEnvInfra);
    }
  }
}

}  // namespace tidepool::scheduler
