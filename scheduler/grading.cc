#include "scheduler/grading.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/poison.h"

namespace tidepool::scheduler {

void Grading::Add(const SampleId& tid, int32_t att, bool stored) {
  Remove(tid);
  Job& job = jobs_[tid];
  job.att = att;
  job.stored = stored;
  queue_.push_back(tid);
}

void Grading::PayloadStored(const SampleId& tid, TimePoint now) {
  const auto it = jobs_.find(tid);
  if (it == jobs_.end() || std::exchange(it->second.stored, true)) return;
  const auto w = workers_.find(it->second.on.worker);
  if (w != workers_.end() && it->second.on == w->second.ref) it->second.deadline = Deadline(w->second, now);
}

// Behind the others that it holds, and twice, so that its own time-out comes first.
TimePoint Grading::Deadline(const Worker& w, TimePoint now) const {
  return now + options_.timeout * 2 * w.in_flight() + FromSeconds(10);
}

void Grading::Remove(const SampleId& tid) {
  const auto it = jobs_.find(tid);
  if (it == jobs_.end()) return;
  if (it->second.on.inc.valid()) {
    const auto w = workers_.find(it->second.on.worker);
    if (w != workers_.end()) w->second.holds.erase(tid);
  } else {
    std::erase(queue_, tid);
  }
  jobs_.erase(tid);
}

void Grading::AddWorker(const WorkerRef& ref) { workers_[ref.worker] = {ref, {}}; }

void Grading::RemoveWorker(WorkerId worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  const SmallSet<SampleId>& holds = it->second.holds;
  for (auto tid = holds.rbegin(); tid != holds.rend(); ++tid) {
    jobs_.at(*tid).on = {};
    queue_.push_front(*tid);
  }
  workers_.erase(it);
}

std::vector<SampleId> Grading::Blame(WorkerId worker) {
  std::vector<SampleId> again;
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return again;
  for (const SampleId& tid : it->second.holds) {
    if (++jobs_.at(tid).crashes >= kPoisonDeaths) again.push_back(tid);
  }
  return again;
}

bool Grading::Takes(const Worker& w, const Job& job) const {
  return w.in_flight() < options_.in_flight_per_worker &&
         (job.crashes == 0 ||
          std::ranges::none_of(w.holds, [&](const SampleId& tid) { return jobs_.at(tid).crashes > 0; }));
}

std::vector<command::Grade> Grading::Assign(TimePoint now) {
  std::vector<command::Grade> grades;
  for (size_t next = 0; next < queue_.size();) {
    const SampleId tid = queue_[next];
    Job& job = jobs_.at(tid);
    Worker* best = nullptr;
    for (auto& [id, w] : workers_) {
      if (!Takes(w, job)) continue;
      const auto rank = [&](const Worker& x) { return std::pair(x.ref.worker == job.avoid, x.in_flight()); };
      if (best == nullptr || rank(w) < rank(*best)) best = &w;
    }
    if (best == nullptr && job.crashes == 0) break;
    if (best == nullptr) {  // others behind it need not wait
      ++next;
      continue;
    }
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(next));
    best->holds.insert(tid);
    job.on = best->ref;
    job.deadline = Deadline(*best, now);
    grades.push_back({best->ref, tid, job.att, job.attempt, options_.timeout});
  }
  return grades;
}

Grading::Result Grading::Done(const event::Graded& e) {
  if (!Expects(e.grader, e.tid, e.att)) return Result::kRefused;
  const auto w = workers_.find(e.grader.worker);
  if (w != workers_.end()) w->second.holds.erase(e.tid);
  Job& job = jobs_.at(e.tid);
  if (e.outcome == GradeOutcome::kInfra && job.attempt < options_.max_retries) {
    ++job.attempt;
    job.avoid = e.grader.worker;
    job.on = {};
    queue_.push_back(e.tid);
    return Result::kRetry;
  }
  jobs_.erase(e.tid);
  return Result::kFinal;
}

TimePoint Grading::Horizon(TimePoint now) const {
  std::optional<TimePoint> first;
  for (const auto& [id, w] : workers_) {
    for (const SampleId& tid : w.holds) {
      const Job& job = jobs_.at(tid);
      if (job.stored) first = std::min(first.value_or(job.deadline), job.deadline);
    }
  }
  return first.value_or(now);
}

std::vector<WorkerRef> Grading::Stuck(TimePoint now) const {
  // By the first sample that each of them holds too long.
  std::vector<std::pair<SampleId, WorkerRef>> late;
  for (const auto& [id, w] : workers_) {
    const auto first = std::ranges::find_if(w.holds, [&](const SampleId& tid) {
      const Job& job = jobs_.at(tid);
      return job.stored && now > job.deadline;
    });
    if (first != w.holds.end()) late.emplace_back(*first, w.ref);
  }
  std::ranges::sort(late);
  std::vector<WorkerRef> stuck;
  for (const auto& [tid, ref] : late) stuck.push_back(ref);
  return stuck;
}

}  // namespace tidepool::scheduler
