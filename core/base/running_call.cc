#include "core/base/running_call.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>

namespace tidepool {
namespace {

constexpr std::string_view kRan = "while it ran ", kLate = " did not return within ", kOn = " on ";
constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Signal handlers have no argument to take these by.
thread_local const RunningCall* running = nullptr;
std::array<struct sigaction, kSignals.size()> before;
std::atomic<bool> telling = false;
int report_to = -1;

// What cannot be written is lost; the process ends nevertheless.
void Write(int fd, std::string_view text) {
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

}  // namespace

void TellRunning() {
  if (running == nullptr) return;
  const RunningCall& call = *running;
  RunningCall::Blame(call.what_);
  LineBuffer line;
  line.Add(kRan).Add(call.what_).Add(kOn);
  if (call.later_.write != nullptr) {
    call.later_.write(call.later_.of, line);
  } else {
    line.Add(call.on_);
  }
  line.End();
  Write(STDERR_FILENO, line.text());
}

namespace {

// Only what is allowed in a handler: write, sigaction, raise, and a line on the stack.
void Tell(int number) {
  TellRunning();
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == number) ::sigaction(number, &before[i], nullptr);
  }
  ::raise(number);  // comes when this handler returns
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

std::string DidNotReturn(std::string_view what, std::string_view within, std::string_view on) {
  return std::string(what).append(kLate).append(within).append(kOn).append(on);
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
  if (report_to < 0) return;
  Write(report_to, what);
  Write(report_to, "\n");
}

void RunningCall::TellCrashes(int report) {
  if (report >= 0) {
    report_to = report;
    ::fcntl(report, F_SETFD, FD_CLOEXEC);  // not for what a plug-in starts
  }
  if (telling.exchange(true)) return;
  struct sigaction tell {};
  tell.sa_handler = Tell;
  tell.sa_flags = SA_ONSTACK;
  sigemptyset(&tell.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &tell, &before[i]);
  std::atexit(TellRunning);  // runs in the thread that called exit()
}

}  // namespace tidepool
