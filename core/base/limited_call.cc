#include "core/base/limited_call.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace tidepool {
namespace {

// Of this process. What a child that was forked has of it is no use: the thread is not there.
class ProcessWatch {
 public:
  ProcessWatch() {
    // Signals are for the threads that know what to do then.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { Look(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  [[nodiscard]] bool MineAlone() const { return ::getpid() == process_; }
  CallWatch& watch() { return watch_; }
  void StopAt(std::function<int()> signals, std::chrono::milliseconds patience) {
    const MutexLock lock(mu_);
    signals_ = std::move(signals);
    patience_ = patience;
  }

 private:
  [[noreturn]] void Look() {
    for (;; std::this_thread::sleep_for(kLook)) {
      if (const auto late = watch_.Overdue(CallWatch::Clock::now()))
        RunningCall::End(late->what, late->Late());
      const MutexLock lock(mu_);
      if (signals_) Hear(signals_());
    }
  }
  void Hear(int signals) TP_REQUIRES(mu_) {
    const auto held = signals > 0 ? watch_.Oldest() : std::nullopt;
    if (!held) return;
    const auto& [call, begun] = *held;
    const std::string what = call.what + " on " + call.on;
    if (signals > 1) RunningCall::End(call.what, "stopped by a signal while it ran " + what);
    // Looks, not time: that in which the process was stopped does not count.
    waited_ = std::exchange(begun_, begun) == begun ? waited_ + kLook : kLook;
    if (waited_ == kTold) Say("the end waits for " + what + " to come back; a second signal ends it now\n");
    if (waited_ < patience_) return;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g s", std::chrono::duration<double>(patience_).count());
    RunningCall::End(call.what, "stopped by a signal, and did not wait longer than " + std::string(seconds) +
                                    " for " + what + " to come back");
  }
  // Not where it would be held up: a terminal that is held, a pipe that nobody reads.
  static void Say(const std::string& line) {
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }

  static constexpr std::chrono::milliseconds kLook{100};
  static constexpr std::chrono::milliseconds kTold{500};  // most come back before

  const pid_t process_ = ::getpid();
  CallWatch watch_;
  Mutex mu_;
  std::function<int()> signals_ TP_GUARDED_BY(mu_);
  std::chrono::milliseconds patience_ TP_GUARDED_BY(mu_){}, waited_ TP_GUARDED_BY(mu_){};
  CallWatch::Clock::time_point begun_ TP_GUARDED_BY(mu_){};  // of the call that was waited for
};

// One for a process, as a signal's handler is: who calls a plug-in is deep in code that is given nothing. It
// is never taken down: exit() in a child that a plug-in forked would wait for a thread that is not there.
ProcessWatch& Watch() {
  static ProcessWatch* const watch = std::make_unique<ProcessWatch>().release();
  return *watch;
}

// Apart from the thread that watches: a config is read before there is anything to watch.
class Usual {
 public:
  UsualLimit Set(UsualLimit limit) {
    const MutexLock lock(mu_);
    return std::exchange(limit_, std::move(limit));
  }
  PluginCall Of(PluginCall call) {
    if (call.limit_s) return call;
    const MutexLock lock(mu_);
    call.limit_s = limit_.limit_s;
    if (limit_.limit_s) call.key = limit_.key;
    return call;
  }

 private:
  Mutex mu_;
  UsualLimit limit_ TP_GUARDED_BY(mu_);
};
Usual& UsualOne() {
  static Usual* const usual = std::make_unique<Usual>().release();
  return *usual;
}

}  // namespace

LimitedCall::LimitedCall(const PluginCall& call) : call_(call), running_(call_.what, call_.on) {
  if (Watch().MineAlone()) watched_.emplace(Watch().watch(), UsualOne().Of(call));
}

UsualLimit LimitedCall::Usual(UsualLimit limit) { return UsualOne().Set(std::move(limit)); }

void LimitedCall::StopAt(std::function<int()> signals, std::chrono::milliseconds patience) {
  Watch().StopAt(std::move(signals), patience);
}

}  // namespace tidepool
