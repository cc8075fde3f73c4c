#include "workers/cli/answer_progress.h"

#include <unistd.h>

#include <algorithm>

#include "core/base/time.h"
#include "core/observe/progress.h"

namespace tidepool::workers {

AnswerProgress::AnswerProgress(int64_t total, int64_t done, std::FILE* out)
    : total_(total),
      before_(done),
      out_(out),
      terminal_(isatty(fileno(out)) != 0),
      start_(Clock::now()),
      drawn_(start_),
      done_(done) {}

std::string AnswerProgress::Line(int64_t done, int64_t total, int64_t fresh, int64_t tokens, double seconds) {
  constexpr int64_t kWidth = 30;
  const int64_t filled = total > 0 ? std::clamp<int64_t>(done * kWidth / total, 0, kWidth) : kWidth;
  std::string line = "[" + std::string(static_cast<size_t>(filled), '=');
  if (filled < kWidth) line += ">" + std::string(static_cast<size_t>(kWidth - filled - 1), ' ');
  line += "] " + std::to_string(done) + " of " + std::to_string(total);
  if (seconds > 0 && tokens > 0)
    line += ", " + observe::NumberText(static_cast<double>(tokens) / seconds) + " tok/s";
  if (fresh > 0 && done < total) {
    const double left = seconds / static_cast<double>(fresh) * static_cast<double>(total - done);
    line += ", about " +
            observe::DurationText(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(left))) +
            " left";
  }
  return line;
}

void AnswerProgress::OnAnswer() {
  ++done_;
  const auto now = Clock::now();
  if (now - drawn_ >= (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000)))
    Draw(now);
}

void AnswerProgress::Draw(Clock::time_point now) {
  drawn_ = now;
  const std::string line =
      Line(done_, total_, done_ - before_, tokens_, std::chrono::duration<double>(now - start_).count());
  std::fprintf(out_, terminal_ ? "\r\x1b[2K%s" : "%s\n", line.c_str());
  std::fflush(out_);
}

void AnswerProgress::Finish() {
  Draw(Clock::now());
  if (terminal_) std::fputs("\n", out_);
}

}  // namespace tidepool::workers
