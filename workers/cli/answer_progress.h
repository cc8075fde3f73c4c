#pragma once
// How far a file of prompts or questions is answered, on standard error: a bar that is drawn over itself on a
// terminal, else a line every ten seconds. One thread.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tidepool::workers {

class AnswerProgress {
 public:
  using Clock = std::chrono::steady_clock;
  // total: answers in all; done: of them, those that were there already.
  AnswerProgress(int64_t total, int64_t done, std::FILE* out = stderr);
  void OnTokens(int64_t tokens) { tokens_ += tokens; }
  void OnAnswer();
  // The last picture, and the line's end.
  void Finish();

  // "[=====>    ] 34 of 100, 1,234 tok/s, about 2m20s left"
  [[nodiscard]] static std::string Line(int64_t done, int64_t total, int64_t fresh, int64_t tokens,
                                        double seconds);

 private:
  void Draw(Clock::time_point now);

  const int64_t total_, before_;
  std::FILE* const out_;
  const bool terminal_;
  const Clock::time_point start_;
  Clock::time_point drawn_;
  int64_t done_ = 0, tokens_ = 0;
};

}  // namespace tidepool::workers
