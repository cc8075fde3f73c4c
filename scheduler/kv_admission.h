#pragma once
// How many chunks may be in flight when an engine's KV cannot be reserved ahead: additive increase,
// multiplicative decrease on engine samples (constants of prime-rl). One cap a job.
//
//   grow   cap *= 1.25^(1/in_flight) per finished unit, only if every last sample has KV < 0.6 and no
//          queue, in_flight >= 0.9 cap and the sample is younger than 15 s
//   trim   KV > 0.8: cap = in_flight * 0.7 / KV, and let it drain; KV > 0.9: the same, and the youngest
//          excess goes back to the buffer (with its tokens). 6 samples between trims.
//   cut    queue > 0.5 running for 6 samples: x 0.9; a cut within 6 samples of the end of a drain: x 0.5.
//          While in_flight > cap further cuts are ignored, or one overload would cascade to the floor.
// Pure; not thread-safe.

#include <cstdint>
#include <map>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/events.h"

namespace tidepool::scheduler {

class KvAdmission {
 public:
  KvAdmission(double start, double least, double most) : cap_(start), least_(least), most_(most) {}

  void Sample(const event::EngineSample& sample, int64_t in_flight, TimePoint now);
  void Forget(SlotId slot) { last_.erase(slot); }
  void UnitDone(int64_t tokens, int64_t in_flight, bool draining, TimePoint now);
  [[nodiscard]] int64_t cap() const { return static_cast<int64_t>(cap_); }
  // Chunks that are to go back to the buffer now (hard trim); asking resets it.
  [[nodiscard]] int64_t TakeExcess();
  [[nodiscard]] int64_t cuts() const { return cuts_; }

 private:
  struct Last {
    event::EngineSample sample;
    TimePoint at;
    int64_t queued = 0;  // samples in a row with a long queue
  };
  void Cut(double factor);
  double cap_, least_, most_;
  std::map<SlotId, Last> last_;
  int64_t samples_ = 0, trimmed_at_ = -1000000, drained_at_ = -1000000, excess_ = 0, cuts_ = 0;
  bool over_ = false;  // in_flight > cap: it drains
};

}  // namespace tidepool::scheduler
