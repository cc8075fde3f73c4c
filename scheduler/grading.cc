#include "scheduler/grading.h"

namespace tidepool::scheduler {

void Grading::Add(const SampleId& tid, int32_t att) {
  Remove(tid);
  jobs_[tid].att = att;
  queue_.push_back(tid);
}

void Grading::Remove(const SampleId& tid) {
  const auto it = jobs_.find(tid);
  if (it == jobs_.end()) return;
  if (it->second.on.inc.valid()) {
    const auto w = workers_.find(it->second.on.worker);
    if (w != workers_.end()) --w->second.in_flight;
  } else {
    std::erase(queue_, tid);
  }
  jobs_.erase(it);
}

void Grading::AddWorker(const WorkerRef& ref) { workers_[ref.worker] = {ref, 0}; }

void Grading::RemoveWorker(WorkerId worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    if (job->second.on != it->second.ref) continue;
    job->second.on = {};
    queue_.push_front(job->first);
  }
  workers_.erase(it);
}

std::vector<command::Grade> Grading::Assign(TimePoint now) {
  std::vector<command::Grade> grades;
  while (!queue_.empty()) {
    const SampleId tid = queue_.front();
    Job& job = jobs_.at(tid);
    Worker* best = nullptr;
    for (auto& [id, w] : workers_) {
      if (w.in_flight >= options_.in_flight_per_worker) continue;
      const auto rank = [&](const Worker& x) { return std::pair(x.ref.worker == job.avoid, x.in_flight); };
      if (best == nullptr || rank(w) < rank(*best)) best = &w;
    }
    if (best == nullptr) break;
    queue_.pop_front();
    ++best->in_flight;
    job.on = best->ref;
    // Behind the others that it holds, and twice, so that its own time-out comes first.
    job.deadline = now + options_.timeout * 2 * best->in_flight + FromSeconds(10);
    grades.push_back({best->ref, tid, job.att, job.attempt, options_.timeout});
  }
  return grades;
}

Grading::Result Grading::Done(const event::Graded& e) {
  const auto it = jobs_.find(e.tid);
  if (it == jobs_.end() || it->second.att != e.att || it->second.on != e.grader) return Result::kRefused;
  const auto w = workers_.find(e.grader.worker);
  if (w != workers_.end()) --w->second.in_flight;
  Job& job = it->second;
  if (e.outcome == GradeOutcome::kInfra && job.attempt < options_.max_retries) {
    ++job.attempt;
    job.avoid = e.grader.worker;
    job.on = {};
    queue_.push_back(e.tid);
    return Result::kRetry;
  }
  jobs_.erase(it);
  return Result::kFinal;
}

std::vector<WorkerRef> Grading::Stuck(TimePoint now) const {
  std::vector<WorkerRef> stuck;
  for (const auto& [tid, job] : jobs_) {
    if (job.on.inc.valid() && now > job.deadline && (stuck.empty() || stuck.back() != job.on)) stuck.push_back(job.on);
  }
  return stuck;
}

}  // namespace tidepool::scheduler
