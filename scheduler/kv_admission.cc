#include "scheduler/kv_admission.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {
namespace {

constexpr double kGrowBelow = 0.6, kSoft = 0.8, kHard = 0.9, kTarget = 0.7, kGrowPerCap = 1.25, kFresh = 15;
constexpr int64_t kPatience = 6;  // samples of every engine

}  // namespace

void KvAdmission::Cut(double factor) {
  if (over_) return;
  if (samples_ - drained_at_ < kPatience * static_cast<int64_t>(std::max<size_t>(last_.size(), 1)))
    factor = 0.5;
  cap_ = std::max(least_, cap_ * factor);
  ++cuts_;
}

void KvAdmission::Sample(const event::EngineSample& sample, int64_t in_flight, TimePoint now) {
  ++samples_;
  Last& last = last_[sample.slot];
  last.queued =
      sample.waiting > 0.5 * static_cast<double>(sample.running) && sample.running > 0 ? last.queued + 1 : 0;
  last.sample = sample;
  last.at = now;
  const bool was_over = over_;
  over_ = static_cast<double>(in_flight) > cap_;
  if (was_over && !over_) drained_at_ = samples_;
  const int64_t between = kPatience * static_cast<int64_t>(last_.size());
  if (sample.kv_usage > kSoft && samples_ - trimmed_at_ >= between && !over_) {
    cap_ = std::max(least_, std::min(cap_, static_cast<double>(in_flight) * kTarget / sample.kv_usage));
    trimmed_at_ = samples_;
    over_ = static_cast<double>(in_flight) > cap_;
    if (sample.kv_usage > kHard) excess_ = std::max<int64_t>(0, in_flight - cap());
    return;
  }
  if (last.queued >= kPatience) {
    last.queued = 0;
    Cut(0.9);
  }
  over_ = static_cast<double>(in_flight) > cap_;
}

void KvAdmission::UnitDone(int64_t tokens, int64_t in_flight, bool draining, TimePoint now) {
  if (tokens <= 0 || draining || in_flight <= 0 || static_cast<double>(in_flight) < 0.9 * cap_) return;
  for (const auto& [slot, last] : last_) {
    if (last.sample.kv_usage >= kGrowBelow || last.sample.waiting > 0 || now - last.at > FromSeconds(kFresh))
      return;
  }
  if (last_.empty()) return;
  cap_ = std::min(most_, cap_ * std::pow(kGrowPerCap, 1.0 / static_cast<double>(in_flight)));
}

int64_t KvAdmission::TakeExcess() {
  const int64_t excess = excess_;
  excess_ = 0;
  return excess;
}

}  // namespace tidepool::scheduler
