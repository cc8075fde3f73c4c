#include "core/observe/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <sstream>
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

// Without its numbers.
std::string Wording(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
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

using Parts = std::vector<std::string>;

Parts Quality(const StatusFile& s) {
  Parts parts;
  if (s.loss) parts.push_back("loss " + Fixed(*s.loss, 4));
  if (s.ranked_right) parts.push_back("ranked right " + HeldOutText("accuracy", *s.ranked_right));
  if (s.margin) parts.push_back("margin " + Fixed(*s.margin, 3));
  if (s.reward)
    parts.push_back("reward " + Fixed(*s.reward, 3) +
                    (s.best_reward ? " (best " + Fixed(*s.best_reward, 3) + ")" : ""));
  if (s.equal_groups) parts.push_back("equal groups " + Fixed(100 * *s.equal_groups, 0) + " %");
  if (s.held_out) {
    const HeldOut& h = *s.held_out;
    std::string text = h.measure == "accuracy" ? "held-out" : "held-out " + h.measure;
    if (h.before) text += " " + HeldOutShort(h.measure, *h.before);
    if (h.before && h.last) text += " ->";
    if (h.last) text += " " + HeldOutShort(h.measure, *h.last);
    const auto& newest = h.last ? h.last : h.before;
    if (newest && newest->lost > 0)
      text += " (" + std::to_string(newest->lost) + " of " + std::to_string(newest->total + newest->lost) +
              " answers lost)";
    if (h.ungraded && (!newest || newest->step < h.ungraded->step))
      text += (newest ? ", none of " : " none of ") + std::to_string(h.ungraded->lost) + " answers graded";
    parts.push_back(text);
  }
  if (s.response_tokens) parts.push_back("length " + Fixed(*s.response_tokens, 1));
  return parts;
}

Parts Speed(const StatusFile& s) {
  Parts parts;
  if (s.tokens_per_s) parts.push_back(SpeedText(s));
  if (s.lag_mean)
    parts.push_back("lag " + Fixed(*s.lag_mean, 1) + (s.lag_max ? " max " + std::to_string(*s.lag_max) : ""));
  parts.push_back("groups " + std::to_string(s.running) + " running, " + std::to_string(s.queued) +
                  " queued");
  return parts;
}

std::string Elapsed(const StatusFile& s) { return DurationText(FromSeconds(s.elapsed_s)); }

std::string Left(const StatusFile& s) {
  if (s.still_s) return "no step for " + DurationText(FromSeconds(*s.still_s));
  return s.left_s ? "about " + DurationText(FromSeconds(*s.left_s)) + " left" : "";
}

std::string Joined(const Parts& parts, const char* between = "  ") {
  std::string line;
  for (const std::string& part : parts) {
    if (!part.empty()) line += (line.empty() ? "" : between) + part;
  }
  return line;
}

// Columns that a line takes: characters of UTF-8.
int64_t Columns(std::string_view line) {
  return std::ranges::count_if(line, [](char c) { return !ContinuesCharacter(c); });
}

// Parts in as many lines as they need, none of them torn where it fits a line by itself.
void AddWrapped(const Parts& parts, int64_t width, std::vector<std::string>& lines) {
  constexpr const char* kIndent = "  ";
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? kIndent + part : line + "  " + part;
    if (!line.empty() && Columns(longer) > width) {
      lines.push_back(line);
      line = kIndent + part;
    } else {
      line = longer;
    }
  }
  if (!line.empty()) lines.push_back(line);
}

// "[=====>    ]", `cells` wide inside; empty without cells.
std::string StepBar(const StatusFile& s, int64_t cells) {
  if (cells <= 0) return "";
  const int64_t done = std::clamp<int64_t>(cells * s.step / s.steps, 0, cells);
  std::string bar(static_cast<size_t>(done), '=');
  if (done < cells) bar += '>';
  bar.resize(static_cast<size_t>(cells), ' ');
  return "[" + bar + "]";
}

// The first line. What is wanted most, step and time left, stays; the rest goes in the order of its worth.
std::string Head(const StatusFile& s, int64_t width) {
  const std::string name = Printable(s.name) + (s.paced ? " (paced)" : ""), phase = Printable(s.phase);
  const std::string step =
      s.steps > 0 ? "step " + std::to_string(s.step) + "/" + std::to_string(s.steps) : "";
  const std::string left = Left(s);
  const std::string times = left.empty() ? Elapsed(s) : Elapsed(s) + ", " + left;
  for (const int64_t cells : {20, 10}) {
    const std::string line =
        Joined({name, phase, s.steps > 0 ? Joined({step, StepBar(s, cells)}, " ") : "", times});
    if (Columns(line) <= width) return line;
  }
  const std::string last = left.empty() ? Elapsed(s) : left;
  for (const std::string& line : {Joined({name, phase, step, times}), Joined({phase, step, times}),
                                  Joined({step, times}), Joined({step, last})}) {
    if (Columns(line) <= width) return line;
  }
  return last;
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

std::string SpeedText(const StatusFile& s) {
  return s.tokens_per_s ? NumberText(*s.tokens_per_s) + " " + s.speed_of : "";
}

std::vector<std::string> WaitsText(const StatusFile& s) {
  std::vector<std::string> waits;
  if (!s.call_held.empty()) waits.push_back("the controller waits for " + s.call_held);
  if (!s.waits_for.empty()) {
    waits.push_back("rewards wait for " + s.waits_for);
  } else if (s.awaiting > 0 && s.running == 0 && s.in_flight == 0 && s.leased == 0) {
    waits.push_back("all samples are made, " + std::to_string(s.awaiting) + " groups wait for their rewards");
  }
  if (s.still_s) {
    waits.push_back("no step has ended for " + DurationText(FromSeconds(*s.still_s)) +
                    ", far longer than the steps before took");
  }
  return waits;
}

std::string RestartText(const RestartFacts& r) {
  const std::string when =
      r.in_s > 0 ? "restarting in " + Fixed(std::ceil(r.in_s), 0) + " s" : "starting again";
  const std::string which = r.deaths > 0 ? " (death " + std::to_string(r.deaths) +
                                               " of the last ten minutes; the sixth is the last)"
                                         : "";
  return when + which + ": " + r.why;
}

std::vector<std::string> ProgressBlock(const StatusFile& s, const TerminalSize& size) {
  const int64_t width = std::max<int64_t>(size.columns - 1, 1);  // in the last column some terminals wrap
  std::vector<std::string> lines = {Head(s, width)};
  AddWrapped(Quality(s), width, lines);
  AddWrapped(Speed(s), width, lines);
  if (!s.last_warning.empty()) {
    Parts words;
    std::istringstream in("warning: " + Printable(s.last_warning));
    for (std::string word; in >> word;) {
      if (!words.empty() && 2 + Columns(words.back()) + 1 + Columns(word) <= width) {
        words.back() += " " + word;
      } else {
        words.push_back(word);
      }
    }
    for (const std::string& line : words) lines.push_back("  " + line);
  }
  // What has left the screen at its top cannot be drawn over.
  if (const auto rows = static_cast<size_t>(std::max<int64_t>(size.rows - 1, 1)); lines.size() > rows)
    lines.resize(rows);
  for (std::string& line : lines) line = Fit(line, width);
  return lines;
}

std::string ProgressLine(const StatusFile& s) {
  Parts parts = {Printable(s.phase)};
  if (s.steps > 0) parts.push_back("step " + std::to_string(s.step) + "/" + std::to_string(s.steps));
  for (const Parts& more : {Quality(s), Speed(s), Parts{Joined({Elapsed(s), Left(s)}, ", ")}})
    parts.insert(parts.end(), more.begin(), more.end());
  return Joined(parts);
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

std::optional<Duration> TimeLeft::Still(TimePoint now) const {
  if (recent_.size() < 2) return std::nullopt;
  Duration longest = FromSeconds(10.0 / 3);
  for (size_t i = 1; i < recent_.size(); ++i)
    longest = std::max(longest, recent_[i].second - recent_[i - 1].second);
  const Duration still = now - recent_.back().second;
  return still > 3 * longest ? std::optional(still) : std::nullopt;
}

Progress::~Progress() { Finish(); }

// A terminal that became narrower has wrapped what stood there, so the rows are counted anew.
void Progress::Erase(const TerminalSize& size) {
  int64_t rows = 0;
  for (const int64_t columns : drawn_columns_)
    rows += std::max<int64_t>(1, (columns + size.columns - 1) / size.columns);
  rows = std::min(rows, size.rows - 1);
  if (rows > 0) std::fprintf(out_, "\x1b[%lldA\r\x1b[J", static_cast<long long>(rows));
  drawn_columns_.clear();
}

void Progress::Draw(const StatusFile& state) {
  const TerminalSize size = size_();
  Erase(size);
  for (const std::string& line : ProgressBlock(state, size)) {
    std::fprintf(out_, "%s\n", line.c_str());
    drawn_columns_.push_back(Columns(line));
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
  const std::string key = state.phase + "/" + std::to_string(state.step);
  // One that comes again and again, of other samples, is said once a step.
  const bool news =
      state.last_warning != warned_ && (key != said_ || Wording(state.last_warning) != Wording(warned_));
  if (!state.last_warning.empty() && news) {
    std::fprintf(out_, "warning: %s\n", Printable(state.last_warning).c_str());
    warned_ = state.last_warning;
  }
  if (key != said_) std::fprintf(out_, "%s\n", ProgressLine(state).c_str());
  said_ = key;
  std::fflush(out_);
}

void Progress::Say(const std::string& line) {
  if (terminal_) Erase(size_());
  std::fprintf(out_, "%s\n", line.c_str());
  if (terminal_ && drawn_) Draw(last_);
  std::fflush(out_);
}

void Progress::Finish() {
  if (terminal_ && pending_) Draw(last_);
  drawn_columns_.clear();  // what stands, stays
}

bool IsTerminal(std::FILE* file) {
  const char* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): read at start-up
  return ::isatty(::fileno(file)) != 0 && (term == nullptr || std::string_view(term) != "dumb");
}

TerminalSize SizeOfTerminal(std::FILE* file) {
  winsize size{};
  TerminalSize out;
  if (::ioctl(::fileno(file), TIOCGWINSZ, &size) != 0) return out;
  if (size.ws_col > 0) out.columns = size.ws_col;
  if (size.ws_row > 0) out.rows = size.ws_row;
  return out;
}

}  // namespace tidepool::observe
