#include "scheduler/simulator/engine_model.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace tidepool::scheduler {
namespace {

constexpr double kSame = 1e-9;  // seconds: the end of a step, summed in another order

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

void EngineModel::Steps(int64_t steps) {
  const double took = factor_ * cost_->DecodeSteps(batch_, kv_, steps);
  busy_ += took - gap_s_ * static_cast<double>(steps);
  since_busy_ += took;
  since_decode_ += took;
  at_ += took;
  clock_ += steps;
  kv_ += static_cast<double>(batch_ * steps);
}

void EngineModel::CatchUp(double now) {
  if (batch_ == 0) {
    if (waiting_.empty()) at_ = std::max(at_, now);
    return;
  }
  if (now <= at_) return;
  // Never beyond what has to happen first: a stop, or the step that the waiting join after.
  int64_t most = stops_.front().clock - clock_;
  if (!waiting_.empty()) most = std::min(most, quantum_);
  int64_t steps = std::min(most, cost_->StepsWithin(batch_, kv_, (now - at_ + kSame) / factor_));
  steps -= steps % quantum_;
  if (steps > 0) Steps(steps);
}

int64_t EngineModel::StepsFor(const EngineRun& run) const {
  const auto tokens = static_cast<double>(std::min({run.chunk_left, run.total_left, run.turn_left}));
  return RoundUp(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(tokens / tokens_per_step_))), quantum_);
}

void EngineModel::Enter(EngineRun& run) {
  if (run.prefill > 0 || run.fetch_s > 0) {
    // It stands in the way of the others' steps.
    const double took =
        factor_ * cost_->Prefill(run.prefill, static_cast<double>(run.context) / 2) + run.fetch_s;
    at_ += took;
    busy_ += took;
    since_busy_ += took;
    run.prefill = run.fetch_s = 0;
  }
  run.decoding = true;
  run.from_clock = clock_;
  run.stop_clock = clock_ + StepsFor(run);
  stops_.push_back({run.stop_clock, run.tid});
  std::push_heap(stops_.begin(), stops_.end(), std::greater<>());
  ++batch_;
  kv_ += static_cast<double>(run.context);
}

void EngineModel::DropStop() {
  std::pop_heap(stops_.begin(), stops_.end(), std::greater<>());
  stops_.pop_back();
}

void EngineModel::Leave(EngineRun& run) {
  if (!run.decoding) {
    std::erase(waiting_, run.tid);
    return;
  }
  const int64_t steps = clock_ - run.from_clock;
  const int64_t most = std::min({run.chunk_left, run.total_left, run.turn_left});
  const int64_t made =
      std::min(most, static_cast<int64_t>(std::llround(static_cast<double>(steps) * tokens_per_step_)));
  --batch_;
  run.decoding = false;
  if (stops_.front().tid == run.tid && stops_.front().clock == run.stop_clock) DropStop();
  while (static_cast<int64_t>(stops_.size()) >
         batch_) {  // some belong to runs that have left; not at the front
    const auto* next = runs_.find(stops_.front().tid);
    if (next != nullptr && next->second.decoding && next->second.stop_clock == stops_.front().clock) break;
    DropStop();
  }
  kv_ = batch_ == 0 ? 0 : std::max(0.0, kv_ - static_cast<double>(run.context + steps));
  run.context += made;
  run.chunk_left -= made;
  run.total_left -= made;
  run.turn_left -= made;
  run.generated += made;
  run.total += made;
  tokens_ += static_cast<double>(made);
}

void EngineModel::Add(const EngineRun& run, double now) {
  const auto [there, fresh] = runs_.try_emplace(run.tid);
  EngineRun& placed = there->second;
  if (!fresh) {
    if (placed.att == run.att) return;  // a repeat
    Leave(placed);                      // what is left of an attempt that was given up
  }
  placed = run;
  placed.decoding = false;
  Resume(placed.tid, now);
}

void EngineModel::Resume(const SampleId& tid, double now) {
  const bool idle = batch_ == 0 && waiting_.empty() && at_ <= now;
  if (idle) begun_ = {now, clock_};
  // What comes in the same instant comes in one frame, and is in the step that the first of it begins.
  if (idle || (begun_ == std::pair(now, clock_) && waiting_.empty()))
    Enter(runs_.at(tid));
  else
    waiting_.push_back(tid);
}

EngineRun* EngineModel::Find(const SampleId& tid) {
  auto* run = runs_.find(tid);
  return run == nullptr ? nullptr : &run->second;
}

void EngineModel::Admit(double now) {
  if (at_ > now + kSame) return;  // not the end of a step
  for (const SampleId& tid : waiting_) Enter(runs_.at(tid));
  waiting_.clear();
}

std::vector<SampleId> EngineModel::Stop(double now) {
  CatchUp(now);
  std::vector<SampleId> out;
  while (!stops_.empty() && stops_.front().clock <= clock_) {
    out.push_back(stops_.front().tid);
    Leave(runs_.at(out.back()));
  }
  Admit(now);
  return out;
}

EngineRun EngineModel::Take(const SampleId& tid) {
  EngineRun& run = runs_.at(tid);
  Leave(run);
  const EngineRun out = run;
  runs_.erase(tid);
  return out;
}

double EngineModel::FinishStep(double now) {
  CatchUp(now);
  const bool over = (at_ > now && at_ == finished_) || (!stops_.empty() && stops_.front().clock <= clock_);
  if (batch_ > 0 && !over) Steps(quantum_);
  at_ = std::max(at_, now);
  return finished_ = at_;
}

double EngineModel::Stall(double seconds, double now) {
  FinishStep(now);
  return finished_ = at_ += seconds;
}

EngineModel::StepSeconds EngineModel::TakeStepSeconds() {
  if (batch_ == 0) return {};
  const int64_t steps = clock_ - since_clock_;
  since_clock_ = clock_;
  if (steps == 0) {  // of a jump that is still under way nothing has ended
    const double step = factor_ * cost_->DecodeSteps(batch_, kv_, quantum_) / static_cast<double>(quantum_) /
                        tokens_per_step_;
    return {step, step};
  }
  const double tokens = static_cast<double>(steps) * tokens_per_step_;
  return {std::exchange(since_busy_, 0.0) / tokens, std::exchange(since_decode_, 0.0) / tokens};
}

double EngineModel::Recompute() {
  double again = 0;
  for (const SampleId& tid : Runs()) again += static_cast<double>(runs_.at(tid).context);
  if (again <= 0) return 0;
  const double took = factor_ * cost_->Prefill(again, again / static_cast<double>(runs_.size()) / 2);
  at_ += took;
  busy_ += took;
  return again;
}

bool EngineModel::SetFactor(double factor, double now) {
  if (factor == factor_) return false;
  CatchUp(now);
  factor_ = factor;
  return true;
}

double EngineModel::Next(bool one_step) const {
  if (batch_ == 0) return waiting_.empty() ? std::numeric_limits<double>::infinity() : at_;
  int64_t steps = stops_.front().clock - clock_;
  if (one_step || !waiting_.empty()) steps = std::min(steps, quantum_);
  return at_ + factor_ * cost_->DecodeSteps(batch_, kv_, std::max<int64_t>(steps, 0));
}

}  // namespace tidepool::scheduler
