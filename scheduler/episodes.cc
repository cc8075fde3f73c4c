#include "scheduler/episodes.h"

#include <algorithm>
#include <tuple>

#include "scheduler/poison.h"

namespace tidepool::scheduler {
namespace {

// Beyond a turn's own time-out, which the worker keeps itself: for the way there and back on a machine that
// is busy.
constexpr double kPatienceSeconds = 10;

}  // namespace

void Episodes::Add(const SampleId& tid, int32_t att, int64_t turn, TimePoint now) {
  const auto known = episodes_.find(tid);
  if (known == episodes_.end() || known->second.att != att || turn <= 0 || known->second.wanted) {
    Remove(tid);
    episodes_[tid] = {.att = att, .begun = now};
  }
  Episode& e = episodes_.at(tid);
  e.turn = turn;
  e.attempt = e.crashes = 0;
  e.avoid = {};
  e.wanted = true;
  e.over = false;
  ++busy_;
  queue_.push_back(tid);
}

void Episodes::Release(Episode& e) {
  const auto w = workers_.find(e.on.worker);
  if (e.on.inc.valid() && w != workers_.end() && w->second.ref == e.on) {
    --w->second.in_flight;
    w->second.suspects -= e.crashes > 0 ? 1 : 0;
  }
  e.on = {};
}

void Episodes::Remove(const SampleId& tid) {
  const auto it = episodes_.find(tid);
  if (it == episodes_.end()) return;
  if (it->second.wanted) {
    --busy_;
    if (it->second.on.inc.valid()) {
      Release(it->second);
    } else {
      std::erase(queue_, tid);
    }
  }
  EndAtHome(tid, it->second);
  episodes_.erase(it);
}

void Episodes::Drop(const SampleId& tid, int32_t att) {
  Remove(tid);
  if (!options_.holds_rows || tid.is_eval()) return;
  for (const auto& [worker, w] : workers_) {
    const command::EndEpisode end{w.ref, tid, att};
    if (ended_.empty() || ended_.back().worker != end.worker || ended_.back().tid != tid ||
        ended_.back().att != att)
      ended_.push_back(end);
  }
}

// What is held for a row is the first thing that a sample of its group plays.
void Episodes::EndAtHome(const SampleId& tid, const Episode& e) {
  const auto w = workers_.find(e.home.worker);
  if (e.over || tid.sample == SampleId::kRowSample || w == workers_.end() || w->second.ref != e.home) return;
  ended_.push_back({e.home, tid, e.att});
}

Duration Episodes::LimitOf(const Episode& e, bool elsewhere) const {
  if (e.turn == 0) return options_.reset_timeout;
  if (!options_.slow_replays || (e.turn > 0 && !elsewhere && e.attempt == 0)) return options_.step_timeout;
  Duration replay = options_.episode_timeout;
  if (e.turn > 0) {
    const auto turns = static_cast<double>(e.turn);
    // As seconds: many turns of a time-out that is meant to be none are more than a Duration holds.
    const double all = Seconds(options_.reset_timeout) + turns * Seconds(options_.step_timeout);
    replay = FromSeconds(std::min(Seconds(replay), all));
  }
  return std::max(replay, options_.step_timeout);
}

void Episodes::AddWorker(const WorkerRef& ref) { workers_[ref.worker] = {.ref = ref}; }

std::vector<SampleId> Episodes::Blame(WorkerId worker) {
  std::vector<SampleId> again;
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return again;
  for (auto& [tid, e] : episodes_) {
    if (!e.on.inc.valid() || e.on != it->second.ref) continue;
    if (++e.crashes >= kPoisonDeaths) again.push_back(tid);
  }
  return again;
}

void Episodes::RemoveWorker(WorkerId worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  for (auto e = episodes_.rbegin(); e != episodes_.rend(); ++e) {
    if (!e->second.on.inc.valid() || e->second.on != it->second.ref) continue;
    e->second.on = {};
    queue_.push_front(e->first);
  }
  workers_.erase(it);
}

std::vector<command::EnvStep> Episodes::Assign(TimePoint now) {
  std::vector<command::EnvStep> steps;
  if (workers_.empty()) return steps;
  for (size_t next = 0; next < queue_.size();) {
    const SampleId tid = queue_[next];
    Episode& e = episodes_.at(tid);
    auto best = workers_.find(e.home.worker);
    const bool suspect = e.crashes > 0;
    if (best == workers_.end() || e.home.worker == e.avoid || (suspect && best->second.suspects > 0)) {
      const auto rank = [&](const Worker& w) {
        return std::tuple(suspect && w.suspects > 0, w.ref.worker == e.avoid, w.in_flight);
      };
      best = std::min_element(workers_.begin(), workers_.end(),
                              [&](const auto& a, const auto& b) { return rank(a.second) < rank(b.second); });
    }
    if (suspect && best->second.suspects > 0) {  // others behind it need not wait
      ++next;
      continue;
    }
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(next));
    best->second.suspects += suspect ? 1 : 0;
    const bool elsewhere = e.home != best->second.ref;
    if (elsewhere) EndAtHome(tid, e);
    const Duration timeout = LimitOf(e, elsewhere);
    ++best->second.in_flight;
    ++turns_;
    best->second.held.push_back(
        {.tid = tid, .att = e.att, .turn = e.turn, .limit = timeout, .since = now, .overtaken = false});
    e.on = best->second.ref;
    e.home = best->second.ref;
    steps.push_back({e.on, tid, e.att, e.turn, timeout});
  }
  return steps;
}

Episodes::Result Episodes::Done(const event::EnvStepped& r, TimePoint now) {
  if (const auto w = workers_.find(r.worker.worker); w != workers_.end() && w->second.ref == r.worker)
    Answered(w->second, r, now);  // one that nobody wants any more as well
  if (!Expects(r.worker, r.tid, r.att, r.turn)) return Result::kRefused;
  Episode& e = episodes_.at(r.tid);
  Release(e);
  const bool waits = r.outcome == GradeOutcome::kInfra && r.no_room;  // until the episode's own deadline
  if (waits || (r.outcome == GradeOutcome::kInfra && e.attempt < options_.max_retries)) {
    e.attempt += waits ? 0 : 1;
    retries_ += waits ? 0 : 1;
    e.avoid = r.worker.worker;
    queue_.push_back(r.tid);
    return Result::kRetry;
  }
  e.wanted = false;
  e.over = r.done;
  --busy_;
  return Result::kFinal;
}

TimePoint Episodes::Held::Deadline() const { return since + limit + FromSeconds(kPatienceSeconds); }

void Episodes::Answered(Worker& w, const event::EnvStepped& r, TimePoint now) {
  const auto answered = std::ranges::find_if(
      w.held, [&](const Held& h) { return h.tid == r.tid && h.att == r.att && h.turn == r.turn; });
  if (answered == w.held.end()) return;
  for (auto before = w.held.begin(); before != answered; ++before) {
    if (!before->overtaken) before->since = now;
    before->overtaken = true;
  }
  for (auto behind = answered + 1; behind != w.held.end(); ++behind) {
    if (!behind->overtaken) behind->since = now;
  }
  w.held.erase(answered);
}

const Episodes::Held* Episodes::Due(const Worker& w) {
  const Held* due = nullptr;
  for (const Held& h : w.held) {
    if (w.in_flight == 0 || (!h.overtaken && &h != &w.held.front())) continue;
    if (due == nullptr || h.Deadline() < due->Deadline()) due = &h;
  }
  return due;
}

std::vector<Episodes::Stuck> Episodes::TakeStuck(TimePoint now) {
  std::vector<Stuck> stuck;
  for (const auto& [worker, w] : workers_) {
    const Held* due = Due(w);
    if (due == nullptr || now <= due->Deadline()) continue;
    stuck.push_back({w.ref, due->tid, due->turn, now - due->since});
    const auto it = episodes_.find(due->tid);
    if (it == episodes_.end() || it->second.on != w.ref || it->second.att != due->att ||
        it->second.turn != due->turn)
      continue;
    ++it->second.attempt;
    ++retries_;
    it->second.avoid = worker;
  }
  return stuck;
}

std::vector<SampleId> Episodes::GivenUp(TimePoint now) const {
  std::vector<SampleId> tids;
  for (const auto& [tid, e] : episodes_) {
    if (e.wanted && (e.attempt > options_.max_retries || now - e.begun > options_.episode_timeout))
      tids.push_back(tid);
  }
  return tids;
}

TimePoint Episodes::Horizon(TimePoint now) const {
  TimePoint horizon = now;
  for (const auto& [worker, w] : workers_) {
    if (const Held* due = Due(w)) horizon = std::max(horizon, due->Deadline());
  }
  return horizon;
}

}  // namespace tidepool::scheduler
