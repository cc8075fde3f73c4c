#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

GradingOptions GradingOf(const RewardOptions& r) {
  return {.max_retries = r.max_retries,
          .in_flight_per_worker = r.in_flight_per_worker,
          .timeout = FromSeconds(r.timeout_s)};
}

EpisodeOptions EpisodesOf(const EnvironmentOptions& e) {
  return {.max_retries = e.max_retries,
          .reset_timeout = FromSeconds(e.reset_timeout_s),
          .step_timeout = FromSeconds(e.step_timeout_s),
          .episode_timeout = FromSeconds(e.episode_timeout_s),
          .holds_rows = e.holds_rows,
          .slow_replays = e.slow_replays};
}

}  // namespace

SampleFlow::SampleFlow(Machines& all)
    : Machine(all),
      grading_(GradingOf(options_.reward)),
      episodes_(EpisodesOf(options_.environment)),
      tokens_kept_(options_.batch.group_size) {}

void SampleFlow::Admit() {
  if (!all_.life.running() || !all_.trainer.ready() || !state_.ever_checkpointed() || facts_.TargetReached())
    return;
  // Accuracy before training comes first; later rows are read while weights are on their way.
  if (state_.step().value == 0 &&
      (!state_.versions().IsPublished(state_.version()) || all_.evaluations.current().Planned({0})))
    return;
  const Ledger& ledger = state_.ledger();
  const LedgerRules& rules = ledger.rules();
  const int64_t steps_left = options_.steps - state_.step().value;
  const int64_t surplus = rules.capacity() - (rules.max_lag_versions + 1) * rules.groups_per_step;
  const int64_t wanted = steps_left * rules.groups_per_step + (steps_left > 0 ? surplus : 0);
  int64_t fresh = preparing_.fresh();
  int64_t from = 0;
  while (ledger.CanStart(fresh) && ledger.open() + fresh < wanted) {
    const int64_t running = ledger.running_samples() + fresh * rules.group_size;
    if (facts_.rl && running > 0 && running >= options_.rollout.max_concurrent) return;
    GroupKey key;
    for (const auto& [ordinal, issue] : ledger.reissues()) {
      if (!preparing_.contains({ordinal, issue})) {
        key = {ordinal, issue};
        break;
      }
    }
    if (key.ordinal < 0) {
      do {
        key = {ledger.ordinals().FirstMissing(from), 0};
        from = key.ordinal + 1;
      } while (preparing_.contains(key));
    }
    const GroupId gid{next_gid_++};
    preparing_.Add(key, {.gid = gid, .again = false, .stored = {}});
    PrepareRow(key, gid);
    ++fresh;
  }
}

void SampleFlow::PrepareRow(const GroupKey& key, GroupId gid) {
  if (facts_.environment) {
    episodes_.Add({key.ordinal, key.issue, SampleId::kRowSample}, 0, 0, now_);
  } else {
    out_.Do(command::PrepareRow{key.ordinal, key.issue, gid});
  }
}

void SampleFlow::On(const event::RowReady& e) {
  const GroupKey key{e.ordinal, e.issue};
  const std::optional<Preparing> taken = preparing_.Take(key);
  if (!taken) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  const Preparing& row = *taken;
  const int64_t group_size = state_.ledger().rules().group_size;
  // A restore put the groups of undone steps back meanwhile: there is no room, and it is read again when
  // there is.
  if (!row.again && !state_.ledger().CanStart(0)) return;
  if (!row.again) {
    for (int64_t k = 0; k < group_size; ++k) {
      out_.Record(record::Issue{{key.ordinal, key.issue, static_cast<int32_t>(k)},
                                row.gid,
                                0,
                                e.prompt_len,
                                facts_.rl ? facts_.max_new : 0});
    }
  }
  const Group* g = state_.ledger().Find(key);
  if (g == nullptr) return;  // dropped meanwhile
  if (row.again && e.prompt_len != g->prompt_len) {
    out_.Warn("row_changed",
              "group " + std::to_string(key.ordinal) + "." + std::to_string(key.issue) +
                  " is dropped: its row, read again, has a prompt of " + std::to_string(e.prompt_len) +
                  " tokens, and had one of " + std::to_string(g->prompt_len),
              {{"row", std::to_string(key.ordinal)}});
    return DropGroup(key, facts_.environment ? DropReason::kEnvInfra : DropReason::kDataInvalid);
  }
  for (size_t k = 0; k < g->samples.size(); ++k) {
    const Sample& s = g->samples[k];
    // Of an earlier life. One that awaits its verdict is being played once more for it.
    if (s.phase != SamplePhase::kRunning && s.phase != SamplePhase::kAwaiting)
      episodes_.Drop(g->Tid(k), s.att);
    if (s.phase != SamplePhase::kRunning || all_.rollouts.requests().Find(g->Tid(k)) != nullptr ||
        finishing_.contains(g->Tid(k)))
      continue;
    if (row.again) out_.Record(record::Issue{g->Tid(k), g->gid, s.att + 1, g->prompt_len, g->max_new});
    if (facts_.rl) AddRequest(*g, k);
  }
  for (const event::PayloadStored& stored : row.stored) On(stored);
}

void SampleFlow::AddRequest(const Group& g, size_t k) {
  all_.rollouts.Add({.tid = g.Tid(k),
                     .gid = g.gid,
                     .att = g.samples[k].att,
                     .prompt_len = g.prompt_len,
                     .max_new = g.max_new,
                     .turn_end = facts_.environment ? options_.environment.max_turn_tokens : 0});
}

void SampleFlow::On(const event::RowInvalid& e) {
  const GroupKey key{e.ordinal, e.issue};
  if (!preparing_.contains(key)) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  DropRow(key, DropReason::kDataInvalid, e.why);
}

// The row of a group cannot be had: its samples are issued and dropped.
void SampleFlow::DropRow(const GroupKey& key, DropReason reason, const std::string& why) {
  const Preparing row = preparing_.Take(key).value();
  if (!row.again && !state_.ledger().CanStart(0)) return;
  out_.Warn(Name(reason), "row " + std::to_string(key.ordinal) + " is dropped: " + why,
            {{"row", std::to_string(key.ordinal)}});
  if (!row.again) {
    for (int64_t k = 0; k < state_.ledger().rules().group_size; ++k) {
      out_.Record(record::Issue{
          {key.ordinal, key.issue, static_cast<int32_t>(k)}, row.gid, 0, 0, facts_.rl ? facts_.max_new : 0});
    }
  }
  DropGroup(key, reason);
  // A data set without a single good row would be read for ever.
  const Ledger& l = state_.ledger();
  const int64_t invalid = l.drops()[static_cast<size_t>(DropReason::kDataInvalid)];
  if (invalid >= options_.data_rows * l.rules().group_size && invalid == l.issued_samples()) {
    all_.life.Fail("data_invalid", "data", "no row of the data set could be used; the last one: " + why);
  }
}

// The reset that makes a group's prompt.
void SampleFlow::RowStepped(const event::EnvStepped& e) {
  episodes_.Remove(e.tid);
  const GroupKey key{e.tid.ordinal, e.tid.issue};
  if (!preparing_.contains(key)) {
    all_.life.Refuse();
    return;
  }
  if (e.outcome == GradeOutcome::kOk) {
    out_.Do(command::AppendObservation{e.tid, e.att, 0});
    On(event::RowReady{key.ordinal, key.issue, e.observation_tokens});
    return;
  }
  const bool infra = e.outcome == GradeOutcome::kInfra;
  CountOutcome(e.outcome, e.why);
  if (!all_.life.over()) DropRow(key, infra ? DropReason::kEnvInfra : DropReason::kDataInvalid, e.why);
}

void SampleFlow::Resume() {
  const Ledger& ledger = state_.ledger();
  for (const auto& [key, g] : std::map(ledger.groups())) {
    for (size_t k = 0; k < g.samples.size(); ++k) {
      // A crash between the ISSUE records of one group.
      if (g.samples[k].phase == SamplePhase::kMissing) {
        out_.Record(record::Issue{g.Tid(k), g.gid, 0, g.prompt_len, g.max_new});
      } else if (g.samples[k].phase == SamplePhase::kAwaiting) {
        Regrade(g.Tid(k), g.samples[k].att);
      }
    }
  }
  // A crash between the records of one decision: what follows from the drops is decided again.
  for (const auto& [key, g] : std::map(ledger.groups())) {
    DropReason last = DropReason::kDataInvalid;
    for (const Sample& sample : g.samples) {
      // That a sample was not awaited leaves no group too small.
      if (sample.phase == SamplePhase::kDropped && sample.reason != DropReason::kOverflowPolicy)
        last = sample.reason;
    }
    DropRedundant(key);
    CheckGroup(key, last);
  }
}

// Groups with samples still to be generated: the prompt is read again, then they are issued again.
void SampleFlow::ResumeRows() {
  if (rows_resumed_) return;
  rows_resumed_ = true;
  for (const auto& [key, g] : state_.ledger().groups()) {
    if (g.phase != GroupPhase::kRunning || preparing_.contains(key)) continue;
    preparing_.Add(key, {.gid = g.gid, .again = true, .stored = {}});
    PrepareRow(key, g.gid);
  }
}

}  // namespace tidepool::scheduler
