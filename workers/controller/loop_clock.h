#pragma once
// The time of a run as its controller lives through it. It stands still while the controller is stopped (by a
// signal, by a suspended machine, by a machine that gives it no turn): nothing is heard in that time, and it
// must not count as silence of the workers. One thread.

#include <chrono>
#include <optional>
#include <utility>

#include "core/base/time.h"

namespace tidepool::workers {

class LoopClock {
 public:
  using Source = std::chrono::steady_clock;
  // The loop asks for the time some twenty times a second. When it did not for so long, it was not there.
  static constexpr std::chrono::seconds kAbsence{1};

  void Start(Source::time_point now) { begin_ = last_ = back_ = now; }
  // requires now not before that of the call before
  TimePoint At(Source::time_point now) {
    if (now - last_ > kAbsence) {
      begin_ += now - last_;
      back_ = now;
      absence_ += now - last_;
    }
    last_ = now;
    return {last_ - begin_};
  }
  // For how long it has been there without a break. What seems to take longer may have stood still with it.
  [[nodiscard]] Source::duration present() const { return last_ - back_; }
  // For how long it was not there since the last call of this.
  Source::duration TakeAbsence() { return std::exchange(absence_, {}); }

 private:
  Source::time_point begin_, last_, back_;
  Source::duration absence_{0};
};

// Whether the machine was suspended: CLOCK_BOOTTIME goes on meanwhile, and CLOCK_MONOTONIC, by which a run
// lives, does not. One thread.
class SuspendWatch {
 public:
  // Both clocks, read together. For how long it was suspended since the call before; 0: not at all, or for
  // less than a second. requires clocks that do not go back
  LoopClock::Source::duration At(LoopClock::Source::duration boot, LoopClock::Source::duration monotonic) {
    const auto asleep = boot - monotonic;
    const auto since = asleep - std::exchange(asleep_, asleep).value_or(asleep);
    return since < LoopClock::kAbsence ? LoopClock::Source::duration{0} : since;
  }

 private:
  std::optional<LoopClock::Source::duration> asleep_;  // since the machine started
};

}  // namespace tidepool::workers
