#include "core/observe/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/base/utf8.h"

namespace tidepool::observe {
namespace {

std::string Fixed(double value, int digits) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

// Control characters would move the cursor out of the block.
std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  return out;
}

// The first `width` characters (UTF-8).
std::string Fit(const std::string& line, int64_t width) {
  int64_t columns = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (ContinuesCharacter(line[i])) continue;
    if (++columns > width) return line.substr(0, i);
  }
  return line;
}

void Part(std::string& line, const std::string& text) {
  if (!text.empty()) line += (line.empty() ? "" : "  ") + text;
}

std::string Quality(const StatusFile& s) {
  std::string line;
  if (s.loss) Part(line, "loss " + Fixed(*s.loss, 4));
  if (s.reward)
    Part(line,
         "reward " + Fixed(*s.reward, 3) + (s.best_reward ? " (best " + Fixed(*s.best_reward, 3) + ")" : ""));
  if (s.held_out) {
    const HeldOut& h = *s.held_out;
    std::string text = h.measure == "accuracy" ? "held-out" : "held-out " + h.measure;
    if (h.before) text += " " + HeldOutText(h.measure, h.before->value);
    if (h.before && h.last) text += " ->";
    if (h.last) text += " " + HeldOutText(h.measure, h.last->value);
    Part(line, text);
  }
  if (s.response_tokens) Part(line, "length " + Fixed(*s.response_tokens, 1));
  return line;
}

std::string Speed(const StatusFile& s) {
  std::string line;
  if (s.tokens_per_s) Part(line, NumberText(*s.tokens_per_s) + " tok/s");
  if (s.lag_mean)
    Part(line, "lag " + Fixed(*s.lag_mean, 1) + (s.lag_max ? " max " + std::to_string(*s.lag_max) : ""));
  Part(line, "groups " + std::to_string(s.running) + " running, " + std::to_string(s.queued) + " queued");
  return line;
}

std::string Times(const StatusFile& s) {
  std::string text = DurationText(FromSeconds(s.elapsed_s));
  if (s.left_s) text += ", about " + DurationText(FromSeconds(*s.left_s)) + " left";
  return text;
}

}  // namespace

std::string DurationText(Duration duration) {
  const double seconds = std::max(0.0, Seconds(duration));
  if (seconds < 60) return Fixed(seconds, 1) + "s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  std::array<char, 32> buffer{};
  if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%lldm%02llds", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%lldh%02lldm", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60));
  }
  return buffer.data();
}

std::string NumberText(double value) {
  if (!std::isfinite(value)) return "n/a";
  const double size = std::abs(value);
  if (size >= 100 && size < 1e15) {
    std::string text = std::to_string(std::llround(size));
    for (auto i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3)
      text.insert(static_cast<size_t>(i), ",");
    return (value < 0 ? "-" : "") + text;
  }
  if (value == std::floor(value) && size < 100) return Fixed(value, 0);
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.3g", value);
  return buffer.data();
}

std::vector<std::string> ProgressBlock(const StatusFile& s, int64_t width) {
  std::vector<std::string> lines;
  std::string head = Printable(s.name) + (s.paced ? " (paced)  " : "  ") + Printable(s.phase);
  if (s.steps > 0) {
    head += "  step " + std::to_string(s.step) + "/" + std::to_string(s.steps);
    constexpr int64_t kBar = 20;
    const int64_t done = std::clamp<int64_t>(kBar * s.step / s.steps, 0, kBar);
    std::string bar(static_cast<size_t>(done), '=');
    if (done < kBar) bar += '>';
    bar.resize(kBar, ' ');
    head += " [" + bar + "]";
  }
  lines.push_back(head + "  " + Times(s));
  for (const std::string& line : {Quality(s), Speed(s)}) {
    if (!line.empty()) lines.push_back("  " + line);
  }
  if (!s.last_warning.empty()) lines.push_back("  warning: " + Printable(s.last_warning));
  for (std::string& line : lines) line = Fit(line, width);
  return lines;
}

std::string ProgressLine(const StatusFile& s) {
  std::string line = Printable(s.phase);
  if (s.steps > 0) Part(line, "step " + std::to_string(s.step) + "/" + std::to_string(s.steps));
  Part(line, Quality(s));
  Part(line, Speed(s));
  Part(line, Times(s));
  return line;
}

void TimeLeft::OnStep(int64_t step, TimePoint now) {
  if (!recent_.empty() && recent_.back().first >= step) return;
  recent_.emplace_back(step, now);
  if (recent_.size() > 20) recent_.erase(recent_.begin());
}

std::optional<Duration> TimeLeft::Estimate(int64_t steps) const {
  if (recent_.size() < 2 || steps < recent_.back().first) return std::nullopt;
  const double per_step = Seconds(recent_.back().second - recent_.front().second) /
                          static_cast<double>(recent_.back().first - recent_.front().first);
  return FromSeconds(per_step * static_cast<double>(steps - recent_.back().first));
}

Progress::~Progress() { Finish(); }

void Progress::Erase() {
  if (lines_ > 0) std::fprintf(out_, "\x1b[%lldA\r\x1b[J", static_cast<long long>(lines_));
  lines_ = 0;
}

void Progress::Draw(const StatusFile& state) {
  Erase();
  for (const std::string& line : ProgressBlock(state, TerminalWidth(out_) - 1)) {
    std::fprintf(out_, "%s\n", line.c_str());
    ++lines_;
  }
  std::fflush(out_);
  pending_ = false;
}

void Progress::Update(const StatusFile& state, TimePoint now) {
  last_ = state;
  if (terminal_) {
    pending_ = true;
    if (drawn_ && now - *drawn_ < interval_) return;
    drawn_ = now;
    return Draw(state);
  }
  if (!state.last_warning.empty() && state.last_warning != warned_) {
    std::fprintf(out_, "warning: %s\n", Printable(state.last_warning).c_str());
    warned_ = state.last_warning;
  }
  const std::string key = state.phase + "/" + std::to_string(state.step);
  if (key != said_) std::fprintf(out_, "%s\n", ProgressLine(state).c_str());
  said_ = key;
  std::fflush(out_);
}

void Progress::Say(const std::string& line) {
  if (terminal_) Erase();
  std::fprintf(out_, "%s\n", line.c_str());
  if (terminal_ && drawn_) Draw(last_);
  std::fflush(out_);
}

void Progress::Finish() {
  if (terminal_ && pending_) Draw(last_);
  lines_ = 0;  // what stands, stays
}

bool IsTerminal(std::FILE* file) {
  const char* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): read at start-up
  return ::isatty(::fileno(file)) != 0 && (term == nullptr || std::string_view(term) != "dumb");
}

int64_t TerminalWidth(std::FILE* file) {
  winsize size{};
  if (::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

}  // namespace tidepool::observe
