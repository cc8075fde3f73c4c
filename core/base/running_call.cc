#include "core/base/running_call.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>

namespace tidepool {
namespace {

constexpr std::string_view kRan = "while it ran ", kLate = " did not return within ", kOn = " on ";
constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Signal handlers have no argument to take these by.
thread_local const std::string* running = nullptr;
std::array<struct sigaction, kSignals.size()> before;
std::atomic<bool> telling = false;

void Say() {
  if (running == nullptr) return;
  // A line that cannot be written is lost; the process ends nevertheless.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, running->data(), running->size());
}

// Only what POSIX allows in a handler: write, sigaction, raise.
void Tell(int number) {
  Say();
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

std::string RanIn(std::string_view text) {
  const size_t begin = text.rfind(kRan), late = text.rfind(kLate);
  if (late != std::string_view::npos && (begin == std::string_view::npos || begin < late)) {
    text = text.substr(0, late);
    const size_t before = text.rfind(": ");
    return std::string(before == std::string_view::npos ? text : text.substr(before + 2));
  }
  if (begin == std::string_view::npos) return "";
  text.remove_prefix(begin + kRan.size());
  return std::string(text.substr(0, text.find(kOn)));
}

RunningCall::RunningCall(std::string_view what, std::string_view on)
    : line_(WhileItRan(what, on) + "\n"), outer_(running) {
  if (telling) thread_local const SignalStack stack;
  running = &line_;
}
RunningCall::~RunningCall() { running = outer_; }

void RunningCall::TellCrashes() {
  if (telling.exchange(true)) return;
  struct sigaction tell {};
  tell.sa_handler = Tell;
  tell.sa_flags = SA_ONSTACK;
  sigemptyset(&tell.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &tell, &before[i]);
  std::atexit(Say);  // runs in the thread that called exit()
}

}  // namespace tidepool
