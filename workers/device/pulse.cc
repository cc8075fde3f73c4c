#include "workers/device/pulse.h"

#include <utility>

#include "core/base/process_memory.h"

namespace tidepool::workers {

void Pulse::Begin(std::string op) {
  const MutexLock lock(mu_);
  beat_.op = std::move(op);
  ++beat_.op_seq;
}

void Pulse::Engine(SlotId slot, const up::StepTokens& stats) {
  const MutexLock lock(mu_);
  for (const up::ChunkDelta& chunk : stats.chunks) device_.generated_tokens += chunk.tokens.size();
  const double decode_s = stats.prefill_tokens == 0 ? stats.step_s
                          : beat_.engines.empty()   ? 0
                                                    : beat_.engines.front().decode_s;
  beat_.engines = {{slot, stats.kv_usage, stats.running, stats.waiting, stats.step_s, decode_s}};
  ++beat_.op_seq;
}

void Pulse::SetPacer(const Pacer* pacer) {
  const MutexLock lock(mu_);
  pacer_ = pacer;
}

void Pulse::FreeBytes(std::optional<int64_t> of_device) {
  const MutexLock lock(mu_);
  device_.free_bytes = of_device;
}

DeviceFacts Pulse::device() {
  const MutexLock lock(mu_);
  return device_;
}

up::Heartbeat Pulse::Take() {
  const MutexLock lock(mu_);
  beat_.rss_bytes = PeakResidentBytes();
  if (pacer_ != nullptr) {
    const PaceCount paced = pacer_->Count();
    beat_.paced_steps = paced.steps;
    beat_.paced_missed = paced.missed;
    beat_.pace_scale_needed = paced.scale_needed;
  }
  return beat_;
}

}  // namespace tidepool::workers
