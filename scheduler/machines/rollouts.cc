#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

constexpr int64_t kMaxChunkErrors = 3;  // of one sample, then it is poison

DispatchOptions DispatchOf(const Facts& facts) {
  const RolloutOptions& r = facts.options.rollout;
  return {.chunk_tokens = ChunkTokens(r.chunk_tokens, facts.max_new, r.block_tokens),
          .max_concurrent = std::max<int64_t>(r.max_concurrent, 1),
          .kv_cache_tokens = r.kv_cache_tokens,
          .order = facts.options.dispatch.order,
          .oracle = facts.options.dispatch.oracle,
          .reserve = r.admission != Admission::kAdaptive,
          .pin = r.pin_version,
          .group_size = facts.options.batch.group_size};
}

}  // namespace

Rollouts::Rollouts(Machines& all)
    : Machine(all),
      dispatcher_(DispatchOf(facts_), all.fleet, [this](SlotId slot) { return weights_.InSight(slot); }),
      weights_(all.fleet, RollConditions()) {
  const RolloutOptions& r = options_.rollout;
  if (r.admission != Admission::kAdaptive) return;
  const auto most = static_cast<double>(std::max<int64_t>(r.max_concurrent, 1));
  const auto engines = static_cast<double>(facts_.layout.gangs.size());
  const auto whole =
      static_cast<double>(std::max<int64_t>(options_.rollout.max_prompt_tokens + facts_.max_new, 1));
  const double start =
      r.kv_cache_tokens > 0 ? engines * static_cast<double>(r.kv_cache_tokens) / whole : most;
  kv_.emplace(std::clamp(start, 1.0, most), 1.0, most);
  dispatcher_.SetCap(kv_->cap());
}

void Rollouts::Resume(const SampleId& tid, int64_t observation_tokens) {
  dispatcher_.Resume(tid, observation_tokens, options_.environment.max_turn_tokens);
}

std::optional<int32_t> Rollouts::Withdraw(const SampleId& tid) {
  const Request* r = dispatcher_.Find(tid);
  if (r == nullptr) return std::nullopt;
  const int32_t att = r->att;
  if (const auto on = dispatcher_.Remove(tid)) {
    out_.Do(command::CancelChunk{on->worker, on->slot, tid, att});
    ghosts_until_[on->slot] = In(kCancelSeconds);
  }
  return att;
}

void Rollouts::Complete(const Request& r) {
  dispatcher_.LearnLength(r.tid);
  Remove(r);
}

void Rollouts::Remove(const Request& r) {
  const SampleId tid = r.tid;  // `r` may be the dispatcher's own
  const GroupId gid = r.gid;
  dispatcher_.Remove(tid);
  ForgetIfDone(gid);
}

void Rollouts::ForgetIfDone(GroupId gid) {
  if (!dispatcher_.HasRequests(gid)) ForgetGroup(gid);
}

bool Rollouts::Serves(const Version& v) const {
  return std::ranges::any_of(fleet_.devices, [&](const auto& item) {
    return item.second.engine() != nullptr && item.second.engine()->version == v;
  });
}

void Rollouts::On(const event::ChunkProgress& e) {
  if (!fleet_.IsLive(SlotOf(e)) || !dispatcher_.Progress(SlotOf(e), e.tid, e.att, e.new_tokens, e.version)) {
    all_.life.Refuse();
    return;
  }
  all_.workers.Progress(e.worker.worker);
  all_.life.Moved();
}

void Rollouts::On(const event::ChunkFinished& e) {
  if (!fleet_.IsLive(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  const Dispatcher::Ended ended = dispatcher_.ChunkEnded(SlotOf(e), e.tid, e.att);
  if (ended == Dispatcher::Ended::kRefused) {
    all_.life.Refuse();
    return;
  }
  all_.workers.Progress(e.worker.worker);
  all_.life.Moved();
  if (ended == Dispatcher::Ended::kGone) return;
  const Request& r = *dispatcher_.Find(e.tid);
  UnitDone(r.generated);
  const bool complete = e.end == event::ChunkEnd::kEos || e.end == event::ChunkEnd::kStop ||
                        e.end == event::ChunkEnd::kLength ||
                        (e.end == event::ChunkEnd::kChunkLimit && r.generated >= r.limit());
  if (complete && facts_.environment && r.generated > 0) {
    all_.samples.TurnEnded(Request(r));
    return;
  }
  if (complete && r.generated > 0) {
    const bool cut = e.end == event::ChunkEnd::kLength || e.end == event::ChunkEnd::kChunkLimit;
    all_.samples.SampleEnded(Request(r), cut ? EndStatus::kTruncated : EndStatus::kOk);
    return;
  }
  if (e.end == event::ChunkEnd::kChunkLimit || e.end == event::ChunkEnd::kCancelled ||
      e.end == event::ChunkEnd::kDrained) {
    dispatcher_.Requeue(e.tid);
    return;
  }
  dispatcher_.CountError(e.tid);
  const bool data = e.end == event::ChunkEnd::kDataError;
  if (!data && r.errors < kMaxChunkErrors) {
    dispatcher_.Requeue(e.tid);
    return;
  }
  const bool infra = e.end == event::ChunkEnd::kEnvError;
  const int32_t att = r.att;  // `r` goes with the request
  const std::string share = e.tid.is_eval() ? "" : all_.samples.CountUnplayable(e.why, infra);
  if (all_.life.over()) return;
  const DropReason reason = data    ? DropReason::kDataInvalid
                            : infra ? DropReason::kEnvInfra
                                    : DropReason::kPoison;
  out_.Warn(Name(reason),
            "sample " + ToString(e.tid) + " is dropped, it cannot be generated: " + e.why + share,
            {{"tid", ToString(e.tid)}});
  if (e.tid.is_eval()) {
    dispatcher_.Remove(e.tid);
    all_.evaluations.Lost(e.tid, att, e.why);
    return;
  }
  out_.Record(record::End{e.tid, att, EndStatus::kError});
  all_.samples.DropSample(e.tid, reason);
}

void Rollouts::Dispatch() {
  if (!all_.life.running()) return;
  if (options_.rollout.pin_version) DropOrphans();
  const bool early = TooEarly();
  for (const Dispatcher::Chunk& c :
       dispatcher_.Assign([&](const Version& v) { return !early && facts_.MayServe(v); }, state_.version(),
                          ComingEngines())) {
    const Request& r = *dispatcher_.Find(c.tid);
    if (!r.only.valid()) out_.Record(record::Start{r.tid, r.att, c.on.worker, c.v, c.on.slot});
    out_.Do(command::StartChunk{c.on.worker, c.on.slot, c.epoch, r.tid, r.att, r.gid, c.v, r.generated,
                                c.tokens, r.limit()});
  }
}

// Undone steps are trained again before anything else, and each makes a version: what is generated before the
// last few of them would be older than the bound when its turn comes, and take along what was still under
// way, the long answers (Q10).
bool Rollouts::TooEarly() {
  const int64_t training = state_.open_lease() >= 0 ? 1 : 0;
  const int64_t again = state_.ledger().Replays({state_.step().value + training});
  // The step that runs may be the last of them.
  const bool undone = again > 0 || (training > 0 && all_.steps.Replays());
  if (!undone || again + training <= state_.ledger().rules().max_lag_versions) return false;
  return training > 0 || !all_.batches.Choose().empty();  // else nothing would ever change
}

int64_t Rollouts::ComingEngines() const {
  return all_.slots.pool().Granting(Role::kRollout) + weights_.loading();
}

// rollout.pin_version: samples whose weights nobody has any more can never go on; their groups begin again.
void Rollouts::DropOrphans() {
  for (const GroupId gid : dispatcher_.Orphans()) {
    for (const auto& [key, g] : state_.ledger().groups()) {
      if (g.gid != gid || g.phase == GroupPhase::kLeased) continue;
      all_.samples.DropGroup(GroupKey(key), DropReason::kStale);
      break;
    }
  }
}

// Its weights are too old to be trained on, so what it was still generating with them is.
void Rollouts::DropPinnedOn(SlotId slot) {
  std::set<GroupKey> keys;
  for (const auto& chunk : dispatcher_.FindEngine(slot)->in_flight.SortedKeys()) {
    if (!chunk.first.is_eval()) keys.insert(KeyOf(chunk.first));
  }
  for (const GroupKey& key : keys) {
    const Group* g = state_.ledger().Find(key);
    if (g != nullptr && g->phase != GroupPhase::kLeased && g->phase != GroupPhase::kTrained)
      all_.samples.DropGroup(key, DropReason::kStale);
  }
}

void Rollouts::ForgetGroup(GroupId gid) {
  for (const SlotRef& on : dispatcher_.ForgetGroup(gid))
    out_.Do(command::ForgetGroup{on.worker, on.slot, gid});
}

}  // namespace tidepool::scheduler
