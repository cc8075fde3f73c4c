#pragma once
// Time is an argument. Decision code takes a TimePoint; only code that has to wait has a clock.

#include <chrono>
#include <cstdint>

namespace tidepool {

using Duration = std::chrono::nanoseconds;
// Monotonic; the zero is the start of the process (or of the simulation).
struct TimePoint {
  Duration since_start{0};
  friend auto operator<=>(const TimePoint&, const TimePoint&) = default;
  friend TimePoint operator+(TimePoint t, Duration d) { return {t.since_start + d}; }
  friend TimePoint operator-(TimePoint t, Duration d) { return {t.since_start - d}; }
  friend Duration operator-(TimePoint a, TimePoint b) { return a.since_start - b.since_start; }
};

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace tidepool
