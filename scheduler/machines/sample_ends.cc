#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// A weighted sum of finite scores may overflow.
std::string NotFiniteText(const event::Graded& graded) {
  std::string scores;
  for (const auto& [name, score] : graded.rewards) {
    char text[32];
    std::snprintf(text, sizeof(text), " %g", score);
    scores += (scores.empty() ? " of " : ", ") + name + text;
  }
  return "the weighted sum" + scores + " is not finite; correct the one that is too large";
}

}  // namespace

void SampleFlow::SampleEnded(const Request& r, EndStatus status) {
  all_.rollouts.Complete(r);
  grading_.Add(r.tid, r.att, /*stored=*/r.tid.is_eval());  // at once: rewards overlap generation
  if (!r.tid.is_eval()) Store(r, status, std::nullopt);
}

void SampleFlow::Store(const Request& r, EndStatus status, std::optional<event::Graded> graded) {
  out_.Record(record::End{r.tid, r.att, status});
  finishing_[r.tid] = {r.att, r.v_min, r.v_max, r.generated, std::move(graded)};
  tokens_kept_.try_emplace(r.tid);
  out_.Do(command::StorePayload{r.tid, r.att});
}

// A row that is trained as it is; nothing of it was generated.
void SampleFlow::RowStored(const event::PayloadStored& e) {
  if (Preparing* row = preparing_.Find(KeyOf(e.tid)); row != nullptr) {
    row->stored.push_back(e);
    return;
  }
  const Sample* s = state_.ledger().Find(e.tid);
  if (s == nullptr || s->phase != SamplePhase::kRunning) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  const int32_t att = s->att;
  out_.Record(record::End{e.tid, att, EndStatus::kOk});
  out_.Record(
      record::Enq{e.tid, att, {}, {}, e.prompt_len, e.response_len, e.digest, e.file, e.offset, e.bytes, {}});
  tokens_kept_.try_emplace(e.tid);
  CheckGroup(KeyOf(e.tid), DropReason::kDataInvalid);
}

void SampleFlow::On(const event::PayloadStored& e) {
  if (!facts_.rl) {
    RowStored(e);
    return;
  }
  const auto it = finishing_.find(e.tid);
  if (it == finishing_.end() || it->second.att != e.att) {
    const Sample* s = state_.ledger().Find(e.tid);
    if (s != nullptr && (s->phase == SamplePhase::kAwaiting || s->phase == SamplePhase::kReady))
      out_.Record(record::Dup{e.tid, e.att});
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  lost_.erase(e.tid);
  const Finished f = std::move(it->second);
  finishing_.erase(it);
  grading_.PayloadStored(e.tid, now_);
  out_.Record(record::Enq{e.tid, e.att, f.v_min, f.v_max, e.prompt_len, e.response_len, e.digest, e.file,
                          e.offset, e.bytes, e.versions});
  const GroupKey key = KeyOf(e.tid);
  if (Expired(*state_.ledger().Find(key))) {
    DropGroup(key, DropReason::kStale);
    return;
  }
  if (f.graded) TakeGrade(e.tid, *f.graded);
}

// A disk or a host is at fault, not the sample: it costs what was generated, and no more, however many
// samples are lost with a host. Where nothing can be kept, the run would generate for ever.
void SampleFlow::On(const event::TokensLost& e) {
  constexpr int64_t kMost = 5;  // of one sample
  if (e.tid.is_eval()) return all_.evaluations.TokensLost(e);
  const Sample* s = state_.ledger().Find(e.tid);
  if (s == nullptr || s->phase != SamplePhase::kRunning || s->att != e.att) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  if (e.data) {
    const std::string share = CountUnplayable(e.why);
    if (all_.life.over()) return;
    out_.Warn("data_invalid",
              "sample " + ToString(e.tid) + " is dropped, its tokens are wrong: " + e.why + share,
              {{"tid", ToString(e.tid)}});
    return DropSample(e.tid, DropReason::kDataInvalid);
  }
  if (++lost_[e.tid] >= kMost)
    return all_.life.Fail("storage", "controller",
                          "the tokens of sample " + ToString(e.tid) + " were lost " + std::to_string(kMost) +
                              " times; the last time: " + e.why);
  out_.Warn("tokens_lost", "sample " + ToString(e.tid) + " begins again, its tokens are lost: " + e.why,
            {{"tid", ToString(e.tid)}});
  out_.Do(command::DiscardTokens{e.tid, e.att});
  Restart(e.tid);
}

void SampleFlow::Assign() {
  for (command::Grade& g : grading_.Assign(now_)) out_.Do(std::move(g));
  for (command::EnvStep& step : episodes_.Assign(now_)) out_.Do(std::move(step));
  for (const command::EndEpisode& end : episodes_.TakeEnded()) out_.Do(end);
}

void SampleFlow::On(const event::Graded& e) {
  if (!fleet_.IsLive(e.grader)) {
    all_.life.Refuse();
    return;
  }
  const Grading::Result result = grading_.Done(e);
  if (result == Grading::Result::kRefused) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  all_.workers.Progress(e.grader.worker);
  deaths_ = 0;
  if (result == Grading::Result::kRetry) {
    out_.Warn("reward_retry",
              "sample " + ToString(e.tid) + " is graded once more, its grader failed: " + e.why,
              {{"tid", ToString(e.tid)}, {"worker", options_.NameOf(e.grader)}});
    return;
  }
  event::Graded graded = e;
  if (graded.outcome == GradeOutcome::kOk && !std::isfinite(graded.reward)) {
    graded.outcome = GradeOutcome::kInfra;
    graded.why = NotFiniteText(graded);
  }
  if (!graded.tid.is_eval()) return Grade(graded);
  if (graded.outcome == GradeOutcome::kOk) {
    all_.evaluations.Graded(graded);
  } else {
    all_.evaluations.Lost(graded.tid, graded.att, graded.why);
  }
}

// GRADED follows ENQ, so that a reward never outlives its tokens.
void SampleFlow::Grade(const event::Graded& graded) {
  const auto it = finishing_.find(graded.tid);
  if (it != finishing_.end()) {
    it->second.graded = graded;
  } else {
    TakeGrade(graded.tid, graded);
  }
}

void SampleFlow::TakeGrade(const SampleId& tid, const event::Graded& e) {
  const Sample* s = state_.ledger().Find(tid);
  if (s == nullptr || s->phase != SamplePhase::kAwaiting) {
    all_.life.Refuse();
    return;
  }
  CountOutcome(e.outcome, e.why);
  if (all_.life.over()) return;
  out_.Record(
      record::Graded{tid, e.outcome, e.grader, e.outcome == GradeOutcome::kOk ? e.reward : 0, e.rewards});
  if (e.outcome == GradeOutcome::kOk) {
    DropRedundant(KeyOf(tid));
    CheckGroup(KeyOf(tid), DropReason::kFiltered);
    return;
  }
  const bool infra = e.outcome == GradeOutcome::kInfra;
  out_.Warn(!infra               ? "data_invalid"
            : facts_.environment ? "env_infra"
                                 : "reward_infra",
            "sample " + ToString(tid) + " is dropped, " +
                (infra ? "its grader failed: " : "it cannot be graded: ") + e.why + LostShare(e.outcome),
            {{"tid", ToString(tid)}, {"worker", options_.NameOf(e.grader)}});
  DropSample(tid, !infra               ? DropReason::kDataInvalid
                  : facts_.environment ? DropReason::kEnvInfra
                                       : DropReason::kRewardInfra);
}

// Its tokens are there, its verdict is not, or does not count.
void SampleFlow::Regrade(const SampleId& tid, int32_t att) {
  if (facts_.environment) {
    episodes_.Add(tid, att, command::kWholeEpisode, now_);  // the same actions, the same reward
  } else {
    grading_.Add(tid, att);
  }
}

// Environment workers of a control task give their fragments' verdicts as graders do.
void SampleFlow::AddSideWorker(const WorkerRef& ref) {
  if (facts_.environment) {
    episodes_.AddWorker(ref);
  } else {
    grading_.AddWorker(ref);
  }
}

void SampleFlow::WorkerLost(const WorkerRef& ref) {
  grading_.RemoveWorker(ref.worker);
  episodes_.RemoveWorker(ref.worker);
  // A verdict that waits for its tokens to be stored would come after the FENCE of who gave it.
  for (auto& [tid, f] : finishing_) {
    if (!f.graded || f.graded->grader != ref) continue;
    f.graded.reset();
    Regrade(tid, f.att);
  }
}

// It needs two deaths to find one sample (poison.h), and the third is of another one: with nothing graded in
// between it is rather the plug-in that no sample suits. Going on would wait longer after each death, and end
// when the place is given up.
void SampleFlow::CountDeath(const event::WorkerLost& e) {
  constexpr int64_t kMost = 3;
  if (e.blames.empty()) return;
  if (std::exchange(blamed_, e.blames) != e.blames) deaths_ = 0;
  if (++deaths_ < kMost) return;
  const bool plays = options_.side_kind() == WorkerKind::kEnvironment;
  all_.life.Fail(plays ? "env_infra" : "reward_infra", plays ? "environment" : "reward",
                 std::to_string(deaths_) + " workers in a row died in " + blamed_ + ", and nothing was " +
                     (plays ? "played" : "graded") +
                     " in between; correct it and build again; the last: " + e.why);
}

std::vector<SampleId> SampleFlow::Blame(WorkerId worker) {
  std::vector<SampleId> blamed = grading_.Blame(worker);
  for (const SampleId& tid : episodes_.Blame(worker)) blamed.push_back(tid);
  return blamed;
}

std::string SampleFlow::Describe() const {
  std::string line;
  const auto add = [&](const char* what, size_t n) {
    if (n > 0) line += (line.empty() ? "" : "; ") + std::string(what) + "=" + std::to_string(n);
  };
  add("rows_being_read", preparing_.size());
  add("payloads_being_stored", finishing_.size());
  add("episodes_being_played", static_cast<size_t>(episodes_.waiting()));
  add("gradings", static_cast<size_t>(grading_.waiting()));
  return line;
}

void SampleFlow::CountOutcome(GradeOutcome outcome, const std::string& why) {
  outcomes_.push_back(outcome);
  ++outcome_counts_[static_cast<size_t>(outcome)];
  if (static_cast<int64_t>(outcomes_.size()) > Budget().Window()) {
    --outcome_counts_[static_cast<size_t>(outcomes_.front())];
    outcomes_.pop_front();
  }
  if (outcome == GradeOutcome::kInfra) last_infra_ = why;
  any_passed_ = any_passed_ || outcome == GradeOutcome::kOk;
  ungradable_ = outcome == GradeOutcome::kData ? ungradable_ + 1 : 0;
  EndIfNothingPasses(why);
  if (!all_.life.over()) EndIfTooManyFail();
}

// Rows of which none can be graded would be generated for and dropped for ever. Where nothing has passed yet
// it is rather the reward that does not suit the rows, and two steps are proof enough, of 16 groups at least;
// later it takes 20 steps, because bad rows may stand together.
int64_t SampleFlow::UngradableMost() const {
  const LedgerRules& rules = state_.ledger().rules();
  const int64_t step = rules.groups_per_step;
  return rules.group_size * (any_passed_ ? 20 * step : std::max<int64_t>(2 * step, 16));
}

void SampleFlow::EndIfNothingPasses(const std::string& why) {
  if (ungradable_ < UngradableMost()) return;
  all_.life.Fail("data_invalid", "data",
                 std::string("not one of the ") + (any_passed_ ? "last " : "first ") +
                     std::to_string(ungradable_) + " samples could be " +
                     (options_.side_kind() == WorkerKind::kEnvironment ? "played" : "graded") +
                     "; the last one: " + why);
}

std::string SampleFlow::CountUnplayable(const std::string& why, bool infra) {
  const GradeOutcome outcome = infra ? GradeOutcome::kInfra : GradeOutcome::kData;
  CountOutcome(outcome, why);
  return LostShare(outcome);
}

InfraBudget SampleFlow::Budget() const {
  const LedgerRules& rules = state_.ledger().rules();
  return {options_.batch.infra_drop_stop, rules.groups_per_step * rules.group_size};
}

// Infrastructure failures have a budget: an alarm, then the end of the run, rather than a policy that
// quietly learns from what is left.
void SampleFlow::EndIfTooManyFail() {
  const InfraBudget budget = Budget();
  const auto seen = static_cast<int64_t>(outcomes_.size());
  const int64_t infra = CountOf(GradeOutcome::kInfra);
  // Of control tasks, too, whose fragments are no episodes to the scheduler.
  const bool plays = options_.side_kind() == WorkerKind::kEnvironment;
  const std::string who = plays ? "environment" : "reward";
  const auto lost = [&] {
    return std::to_string(infra) + " of the last " + std::to_string(seen) +
           " samples were lost to infrastructure failures of the " + who;
  };
  if (budget.Spent(infra, seen)) {
    all_.life.Fail(plays ? "env_infra" : "reward_infra", who,
                   lost() + " (scheduler.infra_drop_stop); the last one: " + last_infra_);
    return;
  }
  const bool alarm = budget.Alarms(infra, seen, options_.batch.infra_drop_alarm);
  if (alarm && !infra_alarmed_)
    out_.Warn("infra_alarm", lost() + " (scheduler.infra_drop_alarm); the last one: " + last_infra_);
  infra_alarmed_ = alarm;
}

// " (12 of the last 12 samples; ...)": what one dropped sample means for the run.
std::string SampleFlow::LostShare(GradeOutcome outcome) const {
  const auto seen = static_cast<int64_t>(outcomes_.size());
  std::string text =
      " (" + std::to_string(CountOf(outcome)) + " of the last " + std::to_string(seen) + " samples";
  if (CountOf(outcome) == seen) {
    const int64_t most = outcome == GradeOutcome::kInfra ? Budget().MostAlone() : UngradableMost();
    text += "; where all are, the run ends after " + std::to_string(most);
  }
  return text + ")";
}

}  // namespace tidepool::scheduler
