#include "scheduler/fleet/health.h"

#include <algorithm>
#include <cmath>

#include "core/base/hash.h"

namespace tidepool::scheduler {
namespace {

constexpr double kMinDeadSeconds = 10;  // see health.h
constexpr int64_t kRetireRestarts = 5;
constexpr double kRetireWindowSeconds = 600;
constexpr double kStreakResetSeconds = 300;
constexpr int64_t kGiveUpStarts = 3;
constexpr double kSlowSeconds = 10, kSlowSteps = 20;  // token progress: suspect
constexpr double kHungFactor = 3;                     // and dead after three times that

std::string SecondsText(Duration d) { return std::to_string(std::llround(Seconds(d))) + " s"; }

}  // namespace

Duration Health::dead_after() const {
  return FromSeconds(std::max(kMinDeadSeconds, 9 * options_.heartbeat_s));
}

bool Health::MayServe(const Worker& w) {
  return w.vitals().life == Life::kHealthy || w.vitals().life == Life::kStale;
}

void Health::Starting(WorkerId worker, TimePoint now) {
  Vitals& p = fleet_.workers.at(worker).vitals_;
  p.life = Life::kStarting;
  p.starting_since = now;
}

void Health::Joined(const WorkerRef& ref, TimePoint now) {
  Worker& w = fleet_.workers.at(ref.worker);
  w.ref_ = ref;
  Vitals& p = w.vitals_;
  p.life = Life::kStale;
  p.heard = p.progress = p.born = now;
  p.op_seq = 0;
  p.op.clear();
  p.busy = false;
  p.failed_starts = 0;
}

void Health::Admitted(WorkerId worker) {
  Vitals& p = fleet_.workers.at(worker).vitals_;
  if (p.life == Life::kStale) p.life = Life::kHealthy;
}

void Health::Heard(WorkerId worker, const event::Heartbeat& beat, TimePoint now) {
  Vitals& p = fleet_.workers.at(worker).vitals_;
  p.heard = now;
  if (beat.op_seq != p.op_seq || beat.op != p.op) {
    p.op_seq = beat.op_seq;
    p.op = beat.op;
    p.progress = now;
  }
  for (const event::EngineSample& engine : beat.engines) {
    Device* d = fleet_.devices.Find(engine.slot);
    if (d == nullptr || d->worker() != worker || engine.step_s <= 0) continue;
    d->pace_.step_s = d->pace_.step_s == 0 ? engine.step_s : 0.8 * d->pace_.step_s + 0.2 * engine.step_s;
  }
  if (now - p.born > FromSeconds(kStreakResetSeconds)) p.streak = 0;
}

void Health::Weigh(SlotId slot, double pace) {
  Pace& p = fleet_.devices.at(slot).pace_;
  p.relative = p.relative == 0 ? pace : 0.8 * p.relative + 0.2 * pace;
}

void Health::Progress(WorkerId worker, TimePoint now) { fleet_.workers.at(worker).vitals_.progress = now; }

void Health::SetBusy(WorkerId worker, bool busy, TimePoint now) {
  Vitals& p = fleet_.workers.at(worker).vitals_;
  if (busy && !p.busy) p.progress = now;
  p.busy = busy;
}

Health::Next Health::Died(WorkerId worker, const std::string& why, TimePoint now, Death death) {
  const bool forgiven = death == Death::kForgiven;
  Worker& w = fleet_.workers.at(worker);
  Vitals& p = w.vitals_;
  const bool joined = w.live();
  w.ref_ = WorkerRef{worker, Incarnation{}};
  p.busy = false;
  p.last_why = why;
  if (p.life == Life::kRetired) return {};
  if (death == Death::kForGood || (!joined && !forgiven && ++p.failed_starts >= kGiveUpStarts)) {
    p.life = Life::kRetired;
    return {Next::kGiveUp, Duration{0}};
  }
  if (!options_.launch) {
    p.life = Life::kAbsent;
    p.starting_since = now;
    return {};
  }
  while (!p.restarts.empty() && now - p.restarts.front() > FromSeconds(kRetireWindowSeconds))
    p.restarts.pop_front();
  if (!forgiven && static_cast<int64_t>(p.restarts.size()) >= kRetireRestarts) {
    p.life = Life::kRetired;
    p.last_why = "it died " + std::to_string(kRetireRestarts + 1) + " times within " +
                 SecondsText(FromSeconds(kRetireWindowSeconds)) +
                 ", which is the limit for a place; the last time: " + why;
    return {Next::kRetired, Duration{0}};
  }
  if (!forgiven) p.restarts.push_back(now);
  ++restarts_;
  // Jitter from a hash, not from a generator: the same for a place and streak whatever else happened.
  const uint64_t h = Mix64(
      options_.seed ^ Mix64(static_cast<uint64_t>(worker.value) * 1000 + static_cast<uint64_t>(restarts_)));
  const double jitter = static_cast<double>(h >> 11) * 0x1.0p-53 / 4;
  const double delay =
      std::min(60.0, std::ldexp(1.0, static_cast<int>(std::min<int64_t>(p.streak, 10)))) * (1 + jitter);
  if (!forgiven) ++p.streak;
  p.life = Life::kRestarting;
  p.starting_since = now + FromSeconds(delay);
  return {Next::kRestart, FromSeconds(delay)};
}

void Health::Retire(WorkerId worker, const std::string& why) {
  Vitals& p = fleet_.workers.at(worker).vitals_;
  p.life = Life::kRetired;
  p.last_why = why;
}

int64_t Health::Deaths(WorkerId worker, TimePoint now) const {
  return std::ranges::count_if(fleet_.workers.at(worker).vitals().restarts,
                               [&](TimePoint at) { return now - at <= FromSeconds(kRetireWindowSeconds); });
}

std::vector<Health::Verdict> Health::Tick(TimePoint now) {
  std::vector<Verdict> verdicts;
  const Duration late = FromSeconds(3 * options_.heartbeat_s);
  for (auto& [worker, w] : fleet_.workers) {
    Vitals& p = w.vitals_;
    const bool left = p.life == Life::kAbsent && options_.may_lack && !w.slots().empty();
    if (p.life == Life::kStarting || p.life == Life::kRestarting || left) {
      if (now - p.starting_since > FromSeconds(options_.start_timeout_s)) {
        verdicts.push_back(
            {Verdict::kStartTimedOut, worker,
             left ? "did not come back within cluster.start_timeout_s; it ended because: " + p.last_why
                  : "did not join within cluster.start_timeout_s"});
      }
      continue;
    }
    if (!w.live()) continue;
    const Duration silent = now - p.heard;
    double step_s = 0;  // of its slowest engine
    for (const SlotId slot : w.slots()) step_s = std::max(step_s, fleet_.devices.at(slot).pace().step_s);
    const Duration slow =
        FromSeconds(std::max({kSlowSeconds, kSlowSteps * step_s, options_.quiet_s / kHungFactor}));
    const Duration stuck = p.busy ? now - p.progress : Duration{0};
    if (silent > dead_after()) {
      verdicts.push_back({Verdict::kDead, worker, "no sign of life for " + SecondsText(silent)});
    } else if (stuck > slow * static_cast<int64_t>(kHungFactor)) {
      verdicts.push_back({Verdict::kDead, worker,
                          "no token progress for " + SecondsText(stuck) + " in operation " +
                              (p.op.empty() ? "none" : p.op)});
    } else if (silent > late || stuck > slow) {
      if (p.life == Life::kHealthy || p.life == Life::kStale) {
        p.life = Life::kSuspect;
        verdicts.push_back({Verdict::kSuspect, worker,
                            silent > late ? "its heartbeat is late" : "no token progress", silent <= late});
      }
    } else if (p.life == Life::kSuspect) {
      p.life = Life::kHealthy;  // never dead in between, so what it serves is what was admitted
      verdicts.push_back({Verdict::kRecovered, worker, ""});
    }
  }
  return verdicts;
}

}  // namespace tidepool::scheduler
