#pragma once
// What a person sees while a job runs. On a terminal one block that is drawn over itself:
//
//   quickstart  training  step 34/100 [=======>            ]  1m12s, about 2m20s left
//     reward 0.613 (best 0.640)  equal groups 25 %  held-out 21.1 % -> 58.0 %
//     length 5.1
//     12,345 tok/s generated  lag 0.3 max 1  groups 16 running, 3 queued
//     warning: worker w1 restarted (killed by signal 9)
//
// It fits the terminal, whose size is asked for anew each time: where that is narrow, step and time left stay
// and the other lines wrap.
//
// Otherwise plain lines: one a step (or a phase, or a warning), none repeated. The functions that
// make text are pure; Progress adds only the writing. One thread.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/time.h"
#include "core/observe/run_files.h"

namespace tidepool::observe {

struct TerminalSize {
  int64_t columns = 80, rows = 24;
};
TerminalSize SizeOfTerminal(std::FILE* file);  // 80 x 24 where unknown
bool IsTerminal(std::FILE* file);              // and TERM is not "dumb"

// Lines of the block, all shorter than a line of the terminal and fewer than it has.
std::vector<std::string> ProgressBlock(const StatusFile& state, const TerminalSize& size);
// One line without control characters.
std::string ProgressLine(const StatusFile& state);
// "12,345 tok/s generated"; empty before the first step. The one number of throughput that people are shown.
std::string SpeedText(const StatusFile& state);
// What a running job waits for, a sentence each.
std::vector<std::string> WaitsText(const StatusFile& state);
// "restarting in 4 s (death 2 of the last ten minutes; the sixth is the last): process 12 was killed by ..."
std::string RestartText(const RestartFacts& place);
// "1h02m", "2m20s", "7.3s"
std::string DurationText(Duration duration);
// 12345.6 -> "12,346"; 1.2345 -> "1.23"
std::string NumberText(double value);

// Mean seconds of the last steps times those that remain. Empty before the second step.
class TimeLeft {
 public:
  void OnStep(int64_t step, TimePoint now);
  [[nodiscard]] std::optional<Duration> Estimate(int64_t steps) const;
  // Since the last step, where that is ten seconds and three times as long as any of the recent ones took.
  [[nodiscard]] std::optional<Duration> Still(TimePoint now) const;

 private:
  std::vector<std::pair<int64_t, TimePoint>> recent_;  // at most 20
};

class Progress {
 public:
  // `out` is borrowed. `terminal`: isatty of it (see IsTerminal), of this `size`. Draws at most every
  // `interval`.
  Progress(std::FILE* out, bool terminal, Duration interval = FromSeconds(0.2))
      : Progress(out, terminal, interval, [out] { return SizeOfTerminal(out); }) {}
  Progress(std::FILE* out, bool terminal, Duration interval, std::function<TerminalSize()> size)
      : out_(out), terminal_(terminal), interval_(interval), size_(std::move(size)) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(const StatusFile& state, TimePoint now);
  // A line above the block that stays.
  void Say(const std::string& line);
  // Draws the last state and leaves it standing.
  void Finish();

 private:
  void Draw(const StatusFile& state);
  void Erase(const TerminalSize& size);

  std::FILE* out_;
  bool terminal_;
  Duration interval_;
  std::function<TerminalSize()> size_;
  std::optional<TimePoint> drawn_;
  std::vector<int64_t> drawn_columns_;  // of the lines of the block on the screen
  StatusFile last_;
  bool pending_ = false;  // last_ is newer than what is drawn
  std::string said_;      // last plain line's key (phase, step)
  std::string warned_;
};

}  // namespace tidepool::observe
