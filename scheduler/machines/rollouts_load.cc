#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

constexpr double kSlowest = 10;  // times the median pace; beyond that health has its say
// Tokens filled into caches in the time of one decoded step of a batch of one. Measured: 30 to 200 on CPU
// slots, more on GPUs. A low number makes moves rarer.
constexpr double kPrefillPerStep = 64;
constexpr double kGainOverMove = 2;

}  // namespace

void Rollouts::Tick() {
  WeighEngines();
  Repack();
}

// rollout.admission: adaptive. A worker's cache is not reserved ahead; what its engine says sets the number
// in flight.
void Rollouts::Heard(const event::Heartbeat& e) {
  for (const event::EngineSample& engine : e.engines) {
    if (fleet_.IsLive(SlotRef{e.worker, engine.slot})) Heard(engine);
  }
}

void Rollouts::Heard(const event::EngineSample& engine) {
  if (const double s = engine.step_s; s > 0) token_s_ = token_s_ == 0 ? s : 0.9 * token_s_ + 0.1 * s;
  cost_.EngineStep(engine.running, engine.step_s);
  const double usual = cost_.StepSeconds(static_cast<double>(engine.running));
  if (engine.running > 0 && engine.decode_s > 0 && usual > 0)
    all_.workers.Weigh(engine.slot, engine.decode_s / usual);
  if (!kv_ || dispatcher_.FindEngine(engine.slot) == nullptr) return;
  kv_->Sample(engine, dispatcher_.in_flight(), now_);
  dispatcher_.SetCap(kv_->cap());
  if (const int64_t excess = kv_->TakeExcess(); excess > 0) {
    // Back to the buffer with their tokens; they have the least to lose.
    for (const auto& [on, tid, att] : dispatcher_.Youngest(excess))
      out_.Do(command::CancelChunk{on.worker, on.slot, tid, att});
  }
}

void Rollouts::UnitDone(int64_t tokens) {
  if (!kv_) return;
  kv_->UnitDone(tokens, dispatcher_.in_flight(), all_.slots.pool().Taking(), now_);
  dispatcher_.SetCap(kv_->cap());
}

// Its samples go on elsewhere from their last token; what the worker still says about them is refused. Only
// where someone else can take them: a second attempt in the same place would not be faster.
void Rollouts::Hedge(WorkerId worker) {
  const bool other = std::ranges::any_of(fleet_.devices, [&](const auto& item) {
    const Engine* e = item.second.engine();
    return item.second.worker() != worker && e != nullptr && e->open() && facts_.MayServe(e->version);
  });
  if (!other) return;
  for (const SlotId slot : fleet_.workers.at(worker).slots()) {
    if (dispatcher_.FindEngine(slot) != nullptr) HedgeSlot(slot);
  }
}

void Rollouts::HedgeSlot(SlotId slot) {
  const SlotRef on = fleet_.Ref(slot);
  const auto taken = dispatcher_.TakeBack(slot);
  for (const auto& [tid, att] : taken) out_.Do(command::CancelChunk{on.worker, slot, tid, att});
  if (taken.empty()) return;
  ghosts_until_[slot] = In(kCancelSeconds);
  out_.Say(LogLevel::kInfo, on.worker, "hedged",
           "does not get on; its " + std::to_string(taken.size()) + " chunks go to others",
           {{"chunks", std::to_string(taken.size())}});
}

// Engines that take longer than the others for a batch of their size get fewer samples in proportion. Steps
// that fill caches say nothing about it: who was given moved samples would be taken for slow, lose all of
// them, and make the next one slow.
void Rollouts::WeighEngines() {
  std::vector<double> paces;
  for (const auto& [slot, d] : fleet_.devices) {
    if (d.engine() != nullptr && d.pace().relative > 0) paces.push_back(d.pace().relative);
  }
  if (paces.size() < 3) return;  // of two nobody can say which is the slow one
  std::nth_element(paces.begin(), paces.begin() + static_cast<std::ptrdiff_t>(paces.size() / 2), paces.end());
  const double median = paces[paces.size() / 2];
  for (const auto& [slot, d] : fleet_.devices) {
    if (d.engine() == nullptr) continue;
    const double pace = d.pace().relative;
    dispatcher_.SetSlowness(slot,
                            pace > 0 ? static_cast<int64_t>(std::clamp(pace / median, 1.0, kSlowest)) : 1);
  }
}

// rollout.pin_version: engines with few samples of older weights are emptied into others of the same version,
// so that they can take the new ones.
void Rollouts::Repack() {
  const RolloutOptions& r = options_.rollout;
  if (!r.pin_version || r.repack_s <= 0 || !all_.life.running()) return;
  const Version newest = state_.version();
  if (repacked_version_ == newest && now_ - repacked_at_ < FromSeconds(r.repack_s)) return;
  repacked_version_ = newest;
  repacked_at_ = now_;
  std::map<Version, std::vector<RepackEngine>> by_version;
  for (const auto& [slot, d] : fleet_.devices) {
    if (d.engine() == nullptr) continue;
    const Engine& e = *d.engine();
    if (!e.open() || !e.version.valid() || e.version == newest || e.in_flight.empty() ||
        dispatcher_.HasGhosts(slot))
      continue;
    RepackEngine from{slot, {}};
    for (const auto& chunk : e.in_flight.SortedKeys()) {
      const Request* q = dispatcher_.Find(chunk.first);
      if (q->only.valid()) continue;
      from.samples.push_back({q->tid, q->prompt_len + q->generated, dispatcher_.ExpectedLeft(*q)});
    }
    by_version[e.version].push_back(std::move(from));
  }
  const RepackLimits limits{r.kv_cache_tokens, r.max_concurrent};
  for (auto& [version, engines] : by_version) {
    if (engines.size() < 2 || dispatcher_.PinnedReady(version) > 0) continue;
    const std::vector<Move> moves = PlanRepack(engines, limits);
    if (moves.empty() || !Worthwhile(moves, engines)) continue;
    std::set<SlotId> emptied;
    for (const Move& m : moves) {
      emptied.insert(m.from);
      const Request* q = dispatcher_.Find(m.tid);
      out_.Do(command::CancelChunk{q->on.worker, q->on.slot, m.tid, q->att});
      dispatcher_.Prefer(m.tid, m.to);
    }
    for (const SlotId slot : emptied) dispatcher_.SetBar(slot, Engine::Bar::kEmptied, true);
    out_.Note("repack",
              std::to_string(moves.size()) + " samples of version " + ToString(version) +
                  " move together and " + std::to_string(emptied.size()) +
                  " engines are free for newer weights",
              {{"version", ToString(version)},
               {"samples", std::to_string(moves.size())},
               {"emptied", std::to_string(emptied.size())}});
  }
}

// Slot-seconds that the emptied engines win, against those of filling the caches again.
bool Rollouts::Worthwhile(const std::vector<Move>& moves, const std::vector<RepackEngine>& engines) const {
  std::map<SlotId, int64_t> longest;
  int64_t moved = 0;
  for (const Move& m : moves) {
    const Request& q = *dispatcher_.Find(m.tid);
    longest[m.from] = std::max(longest[m.from], dispatcher_.ExpectedLeft(q));
    moved += q.prompt_len + q.generated;
  }
  double gain = 0;
  for (const RepackEngine& from : engines) {
    const auto it = longest.find(from.slot);
    if (it != longest.end())
      gain += static_cast<double>(it->second) * cost_.StepSeconds(static_cast<double>(from.samples.size()));
  }
  const double cost = static_cast<double>(moved) * cost_.StepSeconds(1) / kPrefillPerStep;
  return gain > 0 && gain >= kGainOverMove * cost;
}

}  // namespace tidepool::scheduler
