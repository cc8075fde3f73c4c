// From a data row to a graded sample: admission, chunks, payload, reward, expiry.

#include <algorithm>
#include <cmath>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
namespace {

constexpr int64_t kMaxChunkErrors = 3;  // of one sample, then it is poison

bool EqualRewards(const Group& g) {
  std::optional<double> first;
  return std::all_of(g.samples.begin(), g.samples.end(), [&](const Sample& s) {
    if (s.phase == SamplePhase::kDropped) return true;
    if (!first) first = s.reward;
    return s.reward == *first;
  });
}

}  // namespace

bool Controller::Impl::MayServe(const Version& v) const {
  const VersionGraph& versions = state.versions();
  return v.valid() && versions.Lag(v, state.version()) <= state.ledger().rules().max_lag_versions &&
         versions.IsAncestor(v, state.version());
}

// --- admission

void Controller::Impl::Admit() {
  if (finished || shutdown.requested() || trainer.phase != StatePhase::kReady || !state.ever_checkpointed() ||
      TargetReached())
    return;
  // Accuracy before training comes first; later rows are read while weights are on their way.
  if (state.step().value == 0 && (!state.versions().IsPublished(state.version()) || evaluation.Planned({0})))
    return;
  const Ledger& ledger = state.ledger();
  const LedgerRules& rules = ledger.rules();
  const int64_t steps_left = options.config.train.steps - state.step().value;
  const int64_t surplus = rules.capacity() - (rules.max_lag_versions + 1) * rules.groups_per_step;
  const int64_t wanted = steps_left * rules.groups_per_step + (steps_left > 0 ? surplus : 0);
  int64_t fresh = preparing.fresh();
  int64_t from = 0;
  while (ledger.CanStart(fresh) && ledger.open() + fresh < wanted) {
    const int64_t running = ledger.running_samples() + fresh * rules.group_size;
    if (rl && running > 0 && running >= options.config.rollout.max_concurrent) return;
    GroupKey key;
    for (const auto& [ordinal, issue] : ledger.reissues()) {
      if (!preparing.contains({ordinal, issue})) {
        key = {ordinal, issue};
        break;
      }
    }
    if (key.ordinal < 0) {
      do {
        key = {ledger.ordinals().FirstMissing(from), 0};
        from = key.ordinal + 1;
      } while (preparing.contains(key));
    }
    const GroupId gid{next_gid++};
    preparing.Add(key, {.gid = gid, .again = false, .stored = {}});
    PrepareRow(key, gid);
    ++fresh;
  }
}

void Controller::Impl::AddRequest(const Group& g, size_t k, int64_t generated) {
  dispatcher.Add({.tid = g.Tid(k),
                  .gid = g.gid,
                  .att = g.samples[k].att,
                  .prompt_len = g.prompt_len,
                  .max_new = g.max_new,
                  .generated = generated,
                  .only = {},
                  .v_min = {},
                  .v_max = {},
                  .on = {},
                  .home = {},
                  .probe = false,
                  .errors = 0,
                  .turn_end = environment ? options.config.environment.max_turn_tokens : 0});
}

void Controller::Impl::On(const event::RowReady& e) {
  const GroupKey key{e.ordinal, e.issue};
  const std::optional<Preparing> taken = preparing.Take(key);
  if (!taken) {
    Refuse();
    return;
  }
  Moved();
  const Preparing& row = *taken;
  const int64_t group_size = state.ledger().rules().group_size;
  // A restore put the groups of undone steps back meanwhile: there is no room, and it is read again when
  // there is.
  if (!row.again && !state.ledger().CanStart(0)) return;
  if (!row.again) {
    for (int64_t k = 0; k < group_size; ++k) {
      out.Record(record::Issue{
          {key.ordinal, key.issue, static_cast<int32_t>(k)}, row.gid, 0, e.prompt_len, rl ? max_new : 0});
    }
  }
  const Group* g = state.ledger().Find(key);
  if (g == nullptr) return;  // dropped meanwhile
  for (size_t k = 0; k < g->samples.size(); ++k) {
    const Sample& s = g->samples[k];
    if (s.phase != SamplePhase::kRunning || dispatcher.Find(g->Tid(k)) != nullptr ||
        finishing.contains(g->Tid(k)))
      continue;
    if (row.again) out.Record(record::Issue{g->Tid(k), g->gid, s.att + 1, g->prompt_len, g->max_new});
    if (rl) AddRequest(*g, k, 0);
  }
  for (const event::PayloadStored& stored : row.stored) On(stored);
}

void Controller::Impl::On(const event::RowInvalid& e) {
  const GroupKey key{e.ordinal, e.issue};
  if (!preparing.contains(key)) {
    Refuse();
    return;
  }
  Moved();
  DropRow(key, DropReason::kDataInvalid, e.why);
}

// The row of a group cannot be had: its samples are issued and dropped.
void Controller::Impl::DropRow(const GroupKey& key, DropReason reason, const std::string& why) {
  const Preparing row = preparing.Take(key).value();
  if (!row.again && !state.ledger().CanStart(0)) return;
  out.Warn("row=" + std::to_string(key.ordinal) + " event=" +
           (reason == DropReason::kDataInvalid ? "invalid" : Name(reason)) + " why=\"" + why + "\"");
  if (!row.again) {
    for (int64_t k = 0; k < state.ledger().rules().group_size; ++k) {
      out.Record(
          record::Issue{{key.ordinal, key.issue, static_cast<int32_t>(k)}, row.gid, 0, 0, rl ? max_new : 0});
    }
  }
  DropGroup(key, reason);
  // A data set without a single good row would be read for ever.
  const Ledger& l = state.ledger();
  const int64_t invalid = l.drops()[static_cast<size_t>(DropReason::kDataInvalid)];
  if (invalid >= options.data_rows * l.rules().group_size && invalid == l.issued_samples()) {
    Fail("data_invalid", "data", {}, "no row of the data set could be used; the last one: " + why);
  }
}

// --- chunks

void Controller::Impl::Dispatch() {
  if (shutdown.requested()) return;
  if (options.config.rollout.pin_version) DropOrphans();
  const bool early = TooEarly();
  for (const Dispatcher::Chunk& c : dispatcher.Assign([&](const Version& v) { return !early && MayServe(v); },
                                                      state.version(), ComingEngines())) {
    const Request& r = *dispatcher.Find(c.tid);
    const auto* e = dispatcher.FindEngine(c.worker.worker);
    if (!r.only.valid()) out.Record(record::Start{r.tid, r.att, c.worker, c.v});
    out.Do(command::StartChunk{c.worker, e->slot, e->epoch, r.tid, r.att, r.gid, c.v, r.generated, c.tokens,
                               r.limit(), options.config.rollout.kv_on_update == "keep"});
  }
}

// Undone steps are trained again before anything else, and each makes a version: what is generated before the
// last few of them would be older than the bound when its turn comes, and take along what was still under
// way, the long answers (Q10).
bool Controller::Impl::TooEarly() {
  const int64_t training = state.open_lease() >= 0 ? 1 : 0;
  const int64_t again = state.ledger().Replays({state.step().value + training});
  if (again == 0 || again + training <= state.ledger().rules().max_lag_versions) return false;
  return training > 0 || !Batch().empty();  // else nothing would ever change
}

int64_t Controller::Impl::ComingEngines() const { return pool.Granting(Role::kRollout) + weights.loading(); }

// rollout.pin_version: samples whose weights nobody has any more can never go on; their groups begin again.
void Controller::Impl::DropOrphans() {
  for (const GroupId gid : dispatcher.Orphans()) {
    for (const auto& [key, g] : state.ledger().groups()) {
      if (g.gid != gid || g.phase == GroupPhase::kLeased || g.phase == GroupPhase::kTrained) continue;
      DropGroup(GroupKey(key), DropReason::kStale);
      break;
    }
  }
}

// Its weights are too old to be trained on, so what it was still generating with them is.
void Controller::Impl::DropPinnedOn(WorkerId worker) {
  std::set<GroupKey> keys;
  for (const auto& chunk : dispatcher.FindEngine(worker)->in_flight.SortedKeys()) {
    if (!chunk.first.is_eval()) keys.insert(KeyOf(chunk.first));
  }
  for (const GroupKey& key : keys) {
    const Group* g = state.ledger().Find(key);
    if (g != nullptr && g->phase != GroupPhase::kLeased && g->phase != GroupPhase::kTrained)
      DropGroup(key, DropReason::kStale);
  }
}

void Controller::Impl::On(const event::ChunkProgress& e) {
  if (!health.IsCurrent(e.worker) || !dispatcher.Progress(e.worker, e.tid, e.att, e.new_tokens, e.version)) {
    Refuse();
    return;
  }
  health.Progress(e.worker.worker, now);
  Moved();
}

void Controller::Impl::On(const event::ChunkFinished& e) {
  if (!health.IsCurrent(e.worker)) {
    Refuse();
    return;
  }
  const Dispatcher::Ended ended = dispatcher.ChunkEnded(e.worker, e.tid, e.att);
  if (ended == Dispatcher::Ended::kRefused) {
    Refuse();
    return;
  }
  health.Progress(e.worker.worker, now);
  Moved();
  if (ended == Dispatcher::Ended::kGone) return;
  const Request& r = *dispatcher.Find(e.tid);
  UnitDone(r.generated);
  const bool complete = e.end == event::ChunkEnd::kEos || e.end == event::ChunkEnd::kStop ||
                        e.end == event::ChunkEnd::kLength ||
                        (e.end == event::ChunkEnd::kChunkLimit && r.generated >= r.limit());
  if (complete && environment && r.generated > 0) {
    TurnEnded(Request(r));
    return;
  }
  if (complete && r.generated > 0) {
    const bool cut = e.end == event::ChunkEnd::kLength || e.end == event::ChunkEnd::kChunkLimit;
    SampleEnded(Request(r), cut ? EndStatus::kTruncated : EndStatus::kOk);
    return;
  }
  if (e.end == event::ChunkEnd::kChunkLimit || e.end == event::ChunkEnd::kCancelled ||
      e.end == event::ChunkEnd::kDrained) {
    dispatcher.Requeue(e.tid);
    return;
  }
  dispatcher.CountError(e.tid);
  const bool data = e.end == event::ChunkEnd::kDataError;
  if (!data && r.errors < kMaxChunkErrors) {
    dispatcher.Requeue(e.tid);
    return;
  }
  const int32_t att = r.att;  // `r` goes with the request
  out.Warn("tid=" + ToString(e.tid) + " event=" + (data ? "data_invalid" : "poison") + " why=\"" + e.why +
           "\"");
  if (e.tid.is_eval()) {
    dispatcher.Remove(e.tid);
    evaluation.Graded(e.tid, GradeOutcome::kData, 0);
    out.Do(command::DiscardTokens{e.tid, att});
    return;
  }
  out.Record(record::End{e.tid, att, EndStatus::kError});
  DropSample(e.tid, data ? DropReason::kDataInvalid : DropReason::kPoison);
}

void Controller::Impl::SampleEnded(const Request& r, EndStatus status) {
  dispatcher.LearnLength(r.tid);
  dispatcher.Remove(r.tid);
  if (!dispatcher.HasRequests(r.gid)) GroupDone(r.gid);
  grading.Add(r.tid, r.att);  // at once: rewards overlap generation
  if (r.tid.is_eval()) return;
  out.Record(record::End{r.tid, r.att, status});
  finishing[r.tid] = {r.att, r.v_min, r.v_max, r.generated, std::nullopt};
  tokens_kept.try_emplace(r.tid);
  out.Do(command::StorePayload{r.tid, r.att});
}

void Controller::Impl::GroupDone(GroupId gid) {
  for (const WorkerRef& ref : dispatcher.ForgetGroup(gid)) out.Do(command::ForgetGroup{ref, gid});
}

// --- payload and reward

void Controller::Impl::On(const event::PayloadStored& e) {
  if (!rl) {
    if (Preparing* row = preparing.Find(KeyOf(e.tid)); row != nullptr) {
      row->stored.push_back(e);
      return;
    }
    const Sample* s = state.ledger().Find(e.tid);
    if (s == nullptr || s->phase != SamplePhase::kRunning) {
      Refuse();
      return;
    }
    Moved();
    const int32_t att = s->att;
    out.Record(record::End{e.tid, att, EndStatus::kOk});
    out.Record(record::Enq{
        e.tid, att, {}, {}, e.prompt_len, e.response_len, e.digest, e.file, e.offset, e.bytes, {}});
    tokens_kept.try_emplace(e.tid);
    CheckGroup(KeyOf(e.tid), DropReason::kDataInvalid);
    return;
  }
  const auto it = finishing.find(e.tid);
  if (it == finishing.end() || it->second.att != e.att) {
    const Sample* s = state.ledger().Find(e.tid);
    if (s != nullptr && (s->phase == SamplePhase::kAwaiting || s->phase == SamplePhase::kReady))
      out.Record(record::Dup{e.tid, e.att});
    Refuse();
    return;
  }
  Moved();
  const Finished f = std::move(it->second);
  finishing.erase(it);
  out.Record(record::Enq{e.tid, e.att, f.v_min, f.v_max, e.prompt_len, e.response_len, e.digest, e.file,
                         e.offset, e.bytes, e.versions});
  const GroupKey key = KeyOf(e.tid);
  if (Expired(*state.ledger().Find(key))) {
    DropGroup(key, DropReason::kStale);
    return;
  }
  if (f.graded) TakeGrade(e.tid, *f.graded);
}

void Controller::Impl::AssignGrades() {
  for (command::Grade& g : grading.Assign(now)) out.Do(std::move(g));
  for (command::EnvStep& step : episodes.Assign(now)) out.Do(std::move(step));
}

void Controller::Impl::On(const event::Graded& e) {
  if (!health.IsCurrent(e.grader)) {
    Refuse();
    return;
  }
  const Grading::Result result = grading.Done(e);
  if (result == Grading::Result::kRefused) {
    Refuse();
    return;
  }
  Moved();
  health.Progress(e.grader.worker, now);
  if (result == Grading::Result::kRetry) {
    out.Warn("tid=" + ToString(e.tid) + " event=reward_infra retry=1 worker=" + ToString(e.grader) +
             " why=\"" + e.why + "\"");
    return;
  }
  GradeOutcome outcome = e.outcome;
  if (outcome == GradeOutcome::kOk && !std::isfinite(e.reward)) outcome = GradeOutcome::kData;
  if (e.tid.is_eval()) {
    evaluation.Graded(e.tid, outcome, e.rewards.empty() ? e.reward : e.rewards.front().second);
    out.Do(command::DiscardTokens{e.tid, e.att});
    return;
  }
  event::Graded graded = e;
  graded.outcome = outcome;
  const auto it = finishing.find(e.tid);
  if (it != finishing.end()) {
    it->second.graded = std::move(graded);  // GRADED follows ENQ, so that a reward never outlives its tokens
  } else {
    TakeGrade(e.tid, graded);
  }
}

void Controller::Impl::TakeGrade(const SampleId& tid, const event::Graded& e) {
  const Sample* s = state.ledger().Find(tid);
  if (s == nullptr || s->phase != SamplePhase::kAwaiting) {
    Refuse();
    return;
  }
  CountOutcome(e.outcome == GradeOutcome::kInfra);
  if (finished) return;
  out.Record(
      record::Graded{tid, e.outcome, e.grader, e.outcome == GradeOutcome::kOk ? e.reward : 0, e.rewards});
  if (e.outcome == GradeOutcome::kOk) {
    CheckGroup(KeyOf(tid), DropReason::kFiltered);
    return;
  }
  const bool infra = e.outcome == GradeOutcome::kInfra;
  out.Warn("tid=" + ToString(tid) + " event=" +
           (!infra        ? "data_invalid"
            : environment ? "env_infra"
                          : "reward_infra") +
           " why=\"" + e.why + "\"");
  DropSample(tid, !infra        ? DropReason::kDataInvalid
                  : environment ? DropReason::kEnvInfra
                                : DropReason::kRewardInfra);
}

// Infrastructure failures have a budget: an alarm, then the end of the run, rather than a policy that
// quietly learns from what is left.
void Controller::Impl::CountOutcome(bool infra) {
  const LedgerRules& rules = state.ledger().rules();
  const auto step_samples = rules.groups_per_step * rules.group_size;
  outcomes.push_back(infra);
  infra_in_window += infra ? 1 : 0;
  if (static_cast<int64_t>(outcomes.size()) > 20 * step_samples) {
    infra_in_window -= outcomes.front() ? 1 : 0;
    outcomes.pop_front();
  }
  const auto seen = static_cast<double>(outcomes.size());
  const double share = static_cast<double>(infra_in_window) / seen;
  const bool nothing_passes = infra_in_window == static_cast<int64_t>(outcomes.size()) &&
                              static_cast<int64_t>(outcomes.size()) >= 2 * step_samples;
  if (nothing_passes || (static_cast<int64_t>(outcomes.size()) >= 20 * step_samples &&
                         share > options.config.scheduler.infra_drop_stop)) {
    const std::string who = environment ? "environment" : "reward";
    Fail(environment ? "env_infra" : "reward_infra", who, {},
         std::to_string(infra_in_window) + " of the last " + std::to_string(outcomes.size()) +
             " samples were lost to infrastructure failures of the " + who +
             "; see scheduler.infra_drop_stop");
    return;
  }
  const bool alarm = static_cast<int64_t>(outcomes.size()) >= 2 * step_samples &&
                     share > options.config.scheduler.infra_drop_alarm;
  if (alarm && !infra_alarmed) out.Warn("event=infra_alarm share=" + std::to_string(share));
  infra_alarmed = alarm;
}

// --- drops

void Controller::Impl::WithdrawRequest(const SampleId& tid) {
  const Request* r = dispatcher.Find(tid);
  if (r != nullptr) {
    const int32_t att = r->att;
    const auto on = dispatcher.Remove(tid);
    if (on) {
      out.Do(command::CancelChunk{*on, tid, att});
      ghosts_until[on->worker] = now + FromSeconds(kCancelSeconds);
    }
    if (!tid.is_eval()) out.Record(record::End{tid, att, EndStatus::kCancelled});
    out.Do(command::DiscardTokens{tid, att});
  }
  grading.Remove(tid);
  episodes.Remove(tid);
  finishing.erase(tid);
}

void Controller::Impl::DropSample(const SampleId& tid, DropReason reason) {
  const Sample* s = state.ledger().Find(tid);
  const int32_t att = s->att;
  const GroupId gid = state.ledger().Find(KeyOf(tid))->gid;
  WithdrawRequest(tid);
  out.Record(record::Drop{tid, reason});
  tokens_kept.erase(tid);
  out.Do(command::DiscardTokens{tid, att});
  if (!dispatcher.HasRequests(gid)) GroupDone(gid);
  CheckGroup(KeyOf(tid), reason);
}

void Controller::Impl::DropGroup(const GroupKey& key, DropReason reason) {
  const Group* found = state.ledger().Find(key);
  if (found == nullptr) return;
  const Group g = *found;
  for (size_t k = 0; k < g.samples.size(); ++k) {
    if (g.samples[k].phase == SamplePhase::kDropped || g.samples[k].phase == SamplePhase::kMissing) continue;
    WithdrawRequest(g.Tid(k));
    out.Record(record::Drop{g.Tid(k), reason});
    tokens_kept.erase(g.Tid(k));
    out.Do(command::DiscardTokens{g.Tid(k), g.samples[k].att});
  }
  if (preparing.Take(key)) episodes.Remove({key.ordinal, key.issue, SampleId::kRowSample});
  GroupDone(g.gid);
}

// A sample of the group changed: too few left, nothing to learn from, or too old?
void Controller::Impl::CheckGroup(const GroupKey& key, DropReason last) {
  const Group* g = state.ledger().Find(key);
  if (g == nullptr) return;
  const auto size = static_cast<int64_t>(g->samples.size());
  if (size - g->Count(SamplePhase::kDropped) < 2 && size >= 2) {  // a group is compared with itself
    DropGroup(key, last);
    return;
  }
  if (g->phase != GroupPhase::kQueued) return;
  if (Expired(*g)) {
    DropGroup(key, DropReason::kStale);
    return;
  }
  // A group that was trained in an undone step passed the filter then.
  if (rl && options.config.algorithm.filter == "zero_variance" && size >= 2 && g->undone_step == 0 &&
      EqualRewards(*g)) {
    DropGroup(key, DropReason::kFiltered);
    const LedgerRules& rules = state.ledger().rules();
    const int64_t limit = options.config.algorithm.filter_rounds * rules.groups_per_step;
    if (limit > 0 && state.ledger().filtered_since_commit() >= limit) {
      Fail("filtered", "data", {},
           std::to_string(state.ledger().filtered_since_commit()) +
               " groups in a row had equal rewards (algorithm.filter_rounds " +
               std::to_string(options.config.algorithm.filter_rounds) +
               " times train.groups_per_step); take other data or algorithm.filter: none");
    }
  }
}

// Only while the current version stands: with a restore ahead, what is old now may be right then.
bool Controller::Impl::Expired(const Group& g) const {
  if (must_restore || trainer.phase == StatePhase::kNone || trainer.phase == StatePhase::kVerifying)
    return false;
  return state.ledger().AgeAt(g, state.version(), state.versions()) == Age::kExpired;
}

// At a publication: groups that can never be trained again make room for fresh ones.
void Controller::Impl::ExpireOld() {
  const Ledger& ledger = state.ledger();
  const VersionGraph& versions = state.versions();
  const Version v = state.version();
  const int64_t eta = ledger.rules().max_lag_versions;
  const auto old = [&](const Version& made) {
    return made.valid() && versions.Lag(made, v) > eta &&
           !(made.number >= v.number && versions.IsAncestor(v, made));
  };
  std::vector<GroupKey> expired;
  for (const auto& [key, g] : ledger.groups()) {
    if (g.phase == GroupPhase::kLeased || g.phase == GroupPhase::kTrained) continue;
    bool drop = ledger.AgeAt(g, v, versions) == Age::kExpired;
    for (size_t k = 0; k < g.samples.size() && !drop && !ledger.rules().mask; ++k) {
      if (g.samples[k].phase != SamplePhase::kRunning) continue;
      const Request* r = dispatcher.Find(g.Tid(k));
      const auto f = finishing.find(g.Tid(k));
      drop = (r != nullptr && (old(r->v_min) || old(r->v_max))) ||
             (f != finishing.end() && (old(f->second.v_min) || old(f->second.v_max)));
    }
    if (drop) expired.push_back(key);
  }
  for (const GroupKey& key : expired) DropGroup(key, DropReason::kStale);
}

// Work of an undone branch waits for its turn, because a deterministic run arrives at the same versions
// again. If the step that has to come first is not possible any more (its rows were dropped), it would
// wait for ever with all places taken; then it expires and is generated anew.
void Controller::Impl::ReleaseAhead() {
  const Ledger& ledger = state.ledger();
  if (finished || ledger.queued().empty() || !preparing.empty() ||
      ledger.CountGroups(GroupPhase::kRunning) > 0 || ledger.CountGroups(GroupPhase::kAwaiting) > 0 ||
      !MayTrain() || !Batch().empty()) {
    return;
  }
  for (const GroupKey& key : std::set(ledger.queued())) {
    if (ledger.AgeAt(*ledger.Find(key), state.version(), state.versions()) != Age::kFresh)
      DropGroup(key, DropReason::kStale);
  }
}

// After a restore: what was being generated by weights that are undone now begins again. Tokens of one
// sample then lie on one path of the version tree, so its oldest and newest version bound its lag.
void Controller::Impl::RestartUndone() {
  const VersionGraph& versions = state.versions();
  const Version v = state.version();
  std::vector<SampleId> tids;
  for (const SampleId& tid : dispatcher.Requests()) {
    if (tid.is_eval()) continue;
    const Request& r = *dispatcher.Find(tid);
    const auto* e = r.on.inc.valid() ? dispatcher.FindEngine(r.on.worker) : nullptr;
    const bool undone = (r.v_max.valid() && !versions.IsAncestor(r.v_max, v)) ||
                        (r.offered_by.valid() && !versions.IsAncestor(r.offered_by, v)) ||
                        (e != nullptr && !versions.IsAncestor(e->version, v));
    if (undone) tids.push_back(tid);
  }
  for (const SampleId& tid : tids) {
    WithdrawRequest(tid);
    const Group* g = state.ledger().Find(KeyOf(tid));
    const auto k = static_cast<size_t>(tid.sample);
    out.Record(record::Issue{tid, g->gid, g->samples[k].att + 1, g->prompt_len, g->max_new});
    AddRequest(*g, k, 0);
  }
}

}  // namespace tidepool::scheduler
