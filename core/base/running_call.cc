#include "core/base/running_call.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace tidepool {
namespace {

constexpr std::string_view kError = "error: ", kProcess = "error: the process was ", kRan = "while it ran ",
                           kOn = " on ";
struct Deadly {
  int number;
  std::string_view killed;
};
constexpr std::array kSignals = {Deadly{SIGSEGV, "killed by SIGSEGV"}, Deadly{SIGBUS, "killed by SIGBUS"},
                                 Deadly{SIGFPE, "killed by SIGFPE"}, Deadly{SIGILL, "killed by SIGILL"},
                                 Deadly{SIGABRT, "killed by SIGABRT"}};

// Signal handlers have no argument to take these by.
thread_local const RunningCall* running = nullptr;
std::array<struct sigaction, kSignals.size()> before;
std::atomic<bool> telling = false;
int report_to = -1;
pid_t told_of = -1;  // the process that does
std::string log_path, log_context, words_path, afterwards;
bool on_stderr = true;

// What cannot be written is lost; the process ends nevertheless.
void Write(int fd, std::string_view text) {
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

void AddToFile(const std::string& path, std::string_view text) {
  if (path.empty()) return;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  Write(fd, text);
  ::close(fd);
}

void WriteLast(std::string_view text) {
  if (!on_stderr) return;
  Write(STDERR_FILENO, text);
  Write(STDERR_FILENO, afterwards);
}

void AddToFiles(std::string_view text) {
  AddToFile(words_path, text);
  if (text.starts_with(kError)) text.remove_prefix(kError.size());
  if (text.ends_with('\n')) text.remove_suffix(1);
  LineBuffer line;
  line.AddNow().Add(" level=error ");
  if (!log_context.empty()) line.Add(log_context).Add(" ");
  line.Add("event=died_in_call text=").AddQuoted(text).End();
  AddToFile(log_path, line.text());
}

// In two seconds with exit code 3, whatever a write waits for: a disk, a terminal that is held.
void EndSoon() {
  struct sigaction end {};
  end.sa_handler = [](int) { ::_exit(3); };
  ::sigaction(SIGALRM, &end, nullptr);
  ::alarm(2);
}

bool IsTold() { return running != nullptr && ::getpid() == told_of; }

}  // namespace

void TellRunning(std::string_view how) {
  const RunningCall& call = *running;
  EndSoon();
  RunningCall::Blame(call.what_);
  // One write, so that no other thread's words come between.
  LineBuffer line;
  line.Add(kProcess).Add(how).Add(" ").Add(kRan).Add(call.what_).Add(kOn);
  if (call.later_.write != nullptr) {
    call.later_.write(call.later_.of, line);
  } else {
    line.Add(call.on_);
  }
  line.Add("; correct it and build again").End();
  AddToFiles(line.text());
  WriteLast(line.text());
  ::alarm(0);  // whoever handles the signal after us may take longer
}

namespace {

// Only what is allowed in a handler: write, getpid, sigaction, raise, and a line on the stack.
void Tell(int number) {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i].number != number) continue;
    if (IsTold()) TellRunning(kSignals[i].killed);
    ::sigaction(number, &before[i], nullptr);
  }
  ::raise(number);  // comes when this handler returns
}

// Of the thread that called exit().
void TellExit() {
  if (!IsTold()) return;
  EndSoon();
  std::fflush(nullptr);
  TellRunning("ended by a call of exit()");
  ::_exit(3);
}

// Where a handler runs while the thread's own stack may be full.
class SignalStack {
 public:
  SignalStack() : memory_(std::make_unique<char[]>(kBytes)) {
    const stack_t stack{.ss_sp = memory_.get(), .ss_flags = 0, .ss_size = kBytes};
    ::sigaltstack(&stack, &old_);
  }
  ~SignalStack() { ::sigaltstack(&old_, nullptr); }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr size_t kBytes = 64 << 10;  // above SIGSTKSZ, which the CPU's registers decide
  std::unique_ptr<char[]> memory_;
  stack_t old_{};
};

}  // namespace

std::string WhileItRan(std::string_view what, std::string_view on) {
  return std::string(kRan).append(what).append(kOn).append(on);
}

std::string WithoutHow(std::string line) {
  const size_t ran = line.starts_with(kProcess) ? line.find(kRan) : std::string::npos;
  return ran == std::string::npos ? line : line.substr(ran);
}

int ExitCodeOf(std::string_view line) {
  if (!line.starts_with(kProcess)) return 3;
  line.remove_prefix(kProcess.size());
  const auto by =
      std::ranges::find_if(kSignals, [&](const Deadly& signal) { return line.starts_with(signal.killed); });
  return by == kSignals.end() ? 3 : 128 + by->number;
}

LineBuffer& LineBuffer::Add(std::string_view text) {
  const size_t n = std::min(text.size(), text_.size() - 1 - size_);  // the line feed has room
  std::copy_n(text.data(), n, text_.data() + size_);
  size_ += n;
  return *this;
}

namespace {
template <typename Number>
std::string_view Digits(Number number, std::array<char, 24>& out) {
  return {out.data(), std::to_chars(out.data(), out.data() + out.size(), number).ptr};
}
}  // namespace

LineBuffer& LineBuffer::Add(int64_t number) {
  std::array<char, 24> digits;
  return Add(Digits(number, digits));
}
LineBuffer& LineBuffer::Add(uint64_t number) {
  std::array<char, 24> digits;
  return Add(Digits(number, digits));
}

LineBuffer& LineBuffer::AddQuoted(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  Add("\"");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"') {
      Add("'");
    } else if (c == '\\') {
      Add("\\\\");
    } else if (c == '\n') {
      Add("\\n");
    } else if (byte < ' ' || byte == 0x7f) {
      Add("\\x").Add(kHex.substr(byte >> 4, 1)).Add(kHex.substr(byte & 15, 1));
    } else {
      Add({&c, 1});
    }
  }
  return Add("\"");
}

LineBuffer& LineBuffer::AddDigits(int64_t number, size_t least) {
  std::array<char, 24> digits;
  const std::string_view text = Digits(number, digits);
  for (size_t i = text.size(); i < least; ++i) Add("0");
  return Add(text);
}

LineBuffer& LineBuffer::AddNow() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  AddDigits(static_cast<int>(date.year()), 4).Add("-");
  AddDigits(static_cast<unsigned>(date.month()), 2).Add("-");
  AddDigits(static_cast<unsigned>(date.day()), 2).Add("T");
  AddDigits(time.hours().count(), 2).Add(":");
  AddDigits(time.minutes().count(), 2).Add(":");
  AddDigits(time.seconds().count(), 2).Add(".");
  return AddDigits(time.subseconds().count(), 3).Add("Z");
}

RunningCall::RunningCall(std::string_view what, std::string_view on)
    : what_(what), on_(on), later_{}, outer_(running) {
  if (telling) thread_local const SignalStack stack;
  running = this;
}
RunningCall::RunningCall(std::string_view what, LaterWords on) : what_(what), later_(on), outer_(running) {
  if (telling) thread_local const SignalStack stack;
  running = this;
}
RunningCall::~RunningCall() { running = outer_; }

void RunningCall::Blame(std::string_view what) {
  if (report_to < 0 || ::getpid() != told_of) return;
  Write(report_to, what);
  Write(report_to, "\n");
}

void RunningCall::TellIn(std::string log, std::string last_words, std::string context) {
  log_path = std::move(log);
  log_context = std::move(context);
  words_path = std::move(last_words);
}

void RunningCall::TellOnlyIn(std::string last_words) {
  TellIn("", std::move(last_words));
  on_stderr = false;
}

void RunningCall::TellAfterwards(std::string line) {
  afterwards = line.empty() ? "" : std::move(line) + "\n";
}

void RunningCall::End(std::string_view what, std::string_view why) {
  EndSoon();
  Blame(what);
  const std::string line = std::string(kError).append(why) + "\n";
  AddToFiles(line);
  std::fflush(nullptr);
  WriteLast(line);
  ::_exit(3);
}

void RunningCall::TellCrashes(int report) {
  if (report >= 0) {
    report_to = report;
    ::fcntl(report, F_SETFD, FD_CLOEXEC);  // not for what a plug-in starts
  }
  told_of = ::getpid();
  if (telling.exchange(true)) return;
  struct sigaction tell {};
  tell.sa_handler = Tell;
  tell.sa_flags = SA_ONSTACK;
  sigemptyset(&tell.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i].number, &tell, &before[i]);
  std::atexit(TellExit);
}

}  // namespace tidepool
