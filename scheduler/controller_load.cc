// How full the rollout workers are kept: admission under KV pressure, chunks taken back from a worker that
// hangs, tails moved together, slow workers given less.

#include <algorithm>

#include "scheduler/controller_impl.h"
#include "scheduler/repack.h"

namespace tidepool::scheduler {
namespace {

constexpr double kSlowest = 10;  // times the median pace; beyond that health has its say
constexpr double kPrefillPerStep =
    64;  // tokens filled in the time of one decoded step of a batch of one: measured on
         // CPU slots 30 to 200, on GPUs more; a low number makes moves rarer
constexpr double kGainOverMove = 2;

}  // namespace

// rollout.admission: adaptive. A worker's cache is not reserved ahead; what its engine says sets the number
// in flight.
void Controller::Impl::SampleEngine(const event::Heartbeat& e) {
  if (!e.engine) return;
  live.EngineStep(e.engine->running, e.engine->step_s);
  const double usual = live.StepSeconds(static_cast<double>(e.engine->running));
  if (e.engine->running > 0 && e.engine->decode_s > 0 && usual > 0)
    health.Weigh(e.worker.worker, e.engine->decode_s / usual);
  if (environment)
    live.Environments({dispatcher.waiting_env(), dispatcher.in_flight(), dispatcher.decoded(),
                       dispatcher.observed(), e.engine->step_s});
  if (!kv || dispatcher.FindEngine(e.worker.worker) == nullptr) return;
  kv->Sample(e.worker.worker, *e.engine, dispatcher.in_flight(), now);
  dispatcher.SetCap(kv->cap());
  if (const int64_t excess = kv->TakeExcess(); excess > 0) {
    // Back to the buffer with their tokens; they have the least to lose.
    for (const auto& [ref, tid, att] : dispatcher.Youngest(excess))
      out.Do(command::CancelChunk{ref, tid, att});
  }
}

void Controller::Impl::UnitDone(int64_t tokens) {
  if (!kv) return;
  kv->UnitDone(tokens, dispatcher.in_flight(), pool.Taking(), now);
  dispatcher.SetCap(kv->cap());
}

// Its samples go on elsewhere from their last token; what the worker still says about them is refused. Only
// where someone else can take them: a second attempt in the same place would not be faster.
void Controller::Impl::HedgeChunks(WorkerId worker) {
  const auto* slow = dispatcher.FindEngine(worker);
  if (slow == nullptr) return;
  const bool other = std::ranges::any_of(dispatcher.engines(), [&](const auto& e) {
    return e.first != worker && e.second.open() && MayServe(e.second.version);
  });
  if (!other) return;
  const WorkerRef ref = slow->ref;
  const auto taken = dispatcher.TakeBack(worker);
  for (const auto& [tid, att] : taken) out.Do(command::CancelChunk{ref, tid, att});
  if (!taken.empty()) {
    ghosts_until[worker] = now + FromSeconds(kCancelSeconds);
    out.Warn("worker=" + ToString(ref) + " event=hedged chunks=" + std::to_string(taken.size()));
  }
}

// Workers that take longer than the others for a batch of their size get fewer samples in proportion. Steps
// that fill caches say nothing about it: who was given moved samples would be taken for slow, lose all of
// them, and make the next one slow.
void Controller::Impl::WeighWorkers() {
  std::vector<double> paces;
  for (const auto& [id, e] : dispatcher.engines()) {
    if (const double pace = health.Find(id)->pace; pace > 0) paces.push_back(pace);
  }
  if (paces.size() < 3) return;  // of two nobody can say which is the slow one
  std::nth_element(paces.begin(), paces.begin() + static_cast<std::ptrdiff_t>(paces.size() / 2), paces.end());
  const double median = paces[paces.size() / 2];
  for (const auto& [id, e] : dispatcher.engines()) {
    const double pace = health.Find(id)->pace;
    dispatcher.SetSlowness(id, pace > 0 ? static_cast<int64_t>(std::clamp(pace / median, 1.0, kSlowest)) : 1);
  }
}

// rollout.pin_version: workers with few samples of older weights are emptied into others of the same version,
// so that they can take the new ones.
void Controller::Impl::Repack() {
  const RolloutConfig& r = options.config.rollout;
  if (!r.pin_version || r.repack_s <= 0 || shutdown.requested()) return;
  const Version newest = state.version();
  if (repacked_version == newest && now - repacked_at < FromSeconds(r.repack_s)) return;
  repacked_version = newest;
  repacked_at = now;
  std::map<Version, std::vector<RepackWorker>> by_version;
  for (const auto& [id, e] : dispatcher.engines()) {
    if (!e.open() || !e.version.valid() || e.version == newest || e.in_flight.empty() ||
        dispatcher.HasGhosts(id))
      continue;
    RepackWorker w{id, {}};
    for (const auto& chunk : e.in_flight.SortedKeys()) {
      const Request* q = dispatcher.Find(chunk.first);
      if (q->only.valid()) continue;
      w.samples.push_back({q->tid, q->prompt_len + q->generated, dispatcher.ExpectedLeft(*q)});
    }
    by_version[e.version].push_back(std::move(w));
  }
  const RepackLimits limits{r.kv_cache_tokens, r.max_concurrent};
  for (auto& [version, workers] : by_version) {
    if (workers.size() < 2 || dispatcher.PinnedReady(version) > 0) continue;
    const std::vector<Move> moves = PlanRepack(workers, limits);
    if (moves.empty() || !Worthwhile(moves, workers)) continue;
    std::set<WorkerId> emptied;
    for (const Move& m : moves) {
      emptied.insert(m.from);
      const Request* q = dispatcher.Find(m.tid);
      out.Do(command::CancelChunk{q->on, m.tid, q->att});
      dispatcher.Prefer(m.tid, m.to);
    }
    for (const WorkerId id : emptied) dispatcher.SetBar(id, Dispatcher::Bar::kEmptied, true);
    out.Warn("event=repack version=" + ToString(version) + " samples=" + std::to_string(moves.size()) +
             " emptied=" + std::to_string(emptied.size()));
  }
}

// Slot-seconds that the emptied workers win, against those of filling the caches again.
bool Controller::Impl::Worthwhile(const std::vector<Move>& moves,
                                  const std::vector<RepackWorker>& workers) const {
  std::map<WorkerId, int64_t> longest;
  int64_t moved = 0;
  for (const Move& m : moves) {
    const Request& q = *dispatcher.Find(m.tid);
    longest[m.from] = std::max(longest[m.from], dispatcher.ExpectedLeft(q));
    moved += q.prompt_len + q.generated;
  }
  double gain = 0;
  for (const RepackWorker& w : workers) {
    const auto it = longest.find(w.id);
    if (it != longest.end())
      gain += static_cast<double>(it->second) * live.StepSeconds(static_cast<double>(w.samples.size()));
  }
  const double cost = static_cast<double>(moved) * live.StepSeconds(1) / kPrefillPerStep;
  return gain > 0 && gain >= kGainOverMove * cost;
}

// What the elastic policy asks, from what was measured in this run.
Forecast Controller::Impl::MakeForecast(const LedgerView& ledger) {
  Forecast f;
  f.switch_s = pool.switch_s();
  if (!policy.forecasts || ledger.need != TrainerNeed::kBatch) return f;
  double tokens = 0;  // of the batch that is to be trained
  for (const GroupKey& key : batch) {
    for (const Sample& q : state.ledger().Find(key)->samples) {
      if (q.phase == SamplePhase::kReady)
        tokens += static_cast<double>(q.enq.prompt_len + q.enq.response_len);
    }
  }
  f.train_work_s = live.train_work(tokens);
  f.train_fixed_s = live.train_fixed(tokens);
  f.state_copy_s = live.state_copy();
  const double decoded = live.decoded_share();
  f.token_fixed_s = decoded * live.step_fixed();
  f.token_sample_s = decoded * live.step_sample();
  f.token_wait_s = decoded * live.wait();
  // The batch after this one: groups that are complete beyond it, then those that are furthest on, then new
  // ones.
  const LedgerRules& rules = state.ledger().rules();
  const int64_t wanted = std::max<int64_t>(
      0, rules.groups_per_step - std::max<int64_t>(0, ledger.ready_groups - ledger.batch_groups));
  const double train = live.TrainSeconds(1, tokens), step = live.StepSeconds(1);
  const std::set<GroupKey> taken(batch.begin(), batch.end());
  std::vector<std::pair<int64_t, double>> running;  // longest left, all left: of a group
  for (const auto& [key, g] : state.ledger().groups()) {
    if (g.phase != GroupPhase::kRunning || taken.contains(key)) continue;
    int64_t longest = 0;
    double all = 0;
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Request* q = dispatcher.Find(g.Tid(k));
      if (q == nullptr) continue;
      const int64_t left = dispatcher.LikelyLeft(*q);
      longest = std::max(longest, left);
      all += static_cast<double>(left);
      ++f.tail_samples;
      f.tail_kv_tokens += static_cast<double>(q->prompt_len + q->generated) +
                          std::min(static_cast<double>(left), step > 0 ? train / step : 0);
    }
    running.emplace_back(longest, all);
  }
  std::sort(running.begin(), running.end());
  const auto group = static_cast<double>(rules.group_size);
  const auto from_running = std::min<int64_t>(wanted, static_cast<int64_t>(running.size()));
  for (int64_t i = 0; i < from_running; ++i) {
    f.beside.tokens += running[static_cast<size_t>(i)].second;
    f.beside.longest = static_cast<double>(running[static_cast<size_t>(i)].first);
  }
  f.beside.samples = static_cast<double>(from_running) * group;
  // New groups: those that the bound on lag admits beside the step, and those that wait for its end.
  const LengthModel& lengths = dispatcher.lengths();
  const auto fresh = [&](Work& work, int64_t count) {
    if (count <= 0) return;
    const double samples = static_cast<double>(count) * group, prior = static_cast<double>(max_new) / 2;
    work.samples += samples;
    work.tokens += samples * lengths.ResidualLife(0, prior);
    work.longest = std::max(work.longest, lengths.Longest(samples, prior));
  };
  const int64_t admitted =
      std::clamp<int64_t>(rules.capacity() - state.ledger().open(), 0, wanted - from_running);
  fresh(f.beside, admitted);
  fresh(f.after, wanted - from_running - admitted);
  f.tail_samples += static_cast<double>(admitted) * group;
  f.kv_tokens_per_slot = options.config.rollout.kv_cache_tokens;
  return f;
}

}  // namespace tidepool::scheduler
