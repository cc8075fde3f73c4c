#include "core/base/limited_call.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
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
    try {
      std::thread([this] { Look(); }).detach();
    } catch (const std::system_error& e) {  // as many as this user may have: the calls are made all the same
      looks_ = false;
      std::fprintf(
          stderr,
          "warning: no thread can be started (%s), so a call of a plug-in that does not come back is "
          "not ended at its limit\n",
          e.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  // Not in a child that was forked.
  [[nodiscard]] bool Looks() const { return looks_ && ::getpid() == process_; }
  CallWatch& watch() { return watch_; }
  void StopAt(LimitedCall::Stop stop) {
    const MutexLock lock(mu_);
    stop_ = std::move(stop);
  }
  void TellHeld(std::function<void(const PluginCall&)> tell) {
    const MutexLock lock(mu_);
    tell_held_ = std::move(tell);
  }

 private:
  [[noreturn]] void Look() {
    for (;; std::this_thread::sleep_for(kLook)) {
      if (const auto late = watch_.Overdue(CallWatch::Clock::now()))
        RunningCall::End(late->what, late->Late());
      const MutexLock lock(mu_);
      const auto held = watch_.Oldest();
      if (!held) continue;
      if (stop_.signals) Hear(stop_.signals(), *held);
      if (tell_held_) LookAt(*held);
    }
  }
  // Looks, not time: that in which the process was stopped does not count.
  struct Waited {
    CallWatch::Clock::time_point begun{};  // of the call that is waited for
    std::chrono::milliseconds time{};
    std::chrono::milliseconds Look(CallWatch::Clock::time_point of) {
      time = std::exchange(begun, of) == of ? time + kLook : kLook;
      return time;
    }
  };
  void Hear(int signals, const CallWatch::UnderWay& held) TP_REQUIRES(mu_) {
    if (signals <= 0) return;
    const auto& [call, begun] = held;
    const std::string what = call.what + " on " + call.on;
    if (signals > 1) RunningCall::End(call.what, "stopped by " + stop_.by + " while it ran " + what);
    const auto waited = stopping_.Look(begun);
    if (waited == kTold && stop_.tell) stop_.tell("the end waits for " + what);
    if (waited == kTold && !stop_.tell)
      Say("the end waits for " + what + " to come back; a second signal ends it now\n");
    if (waited < stop_.patience) return;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g s", std::chrono::duration<double>(stop_.patience).count());
    RunningCall::End(call.what, "stopped by " + stop_.by + ", and did not wait longer than " +
                                    std::string(seconds) + " for " + what + " to come back");
  }
  void LookAt(const CallWatch::UnderWay& held) TP_REQUIRES(mu_) {
    constexpr std::chrono::milliseconds kMost{5000};
    const std::chrono::milliseconds half{static_cast<int64_t>(500 * held.call.Seconds())};
    const std::chrono::milliseconds after = std::min(kMost, half);
    const auto waited = held_.Look(held.begun);
    if (waited >= after && waited - kLook < after) tell_held_(held.call);
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
  bool looks_ = true;
  CallWatch watch_;
  Mutex mu_;
  LimitedCall::Stop stop_ TP_GUARDED_BY(mu_);
  std::function<void(const PluginCall&)> tell_held_ TP_GUARDED_BY(mu_);
  Waited stopping_ TP_GUARDED_BY(mu_), held_ TP_GUARDED_BY(mu_);
};

// One for a process, as a signal's handler is: who calls a plug-in is deep in code that is given nothing. It
// is never taken down: exit() in a child that a plug-in forked would wait for a thread that is not there.
ProcessWatch*& OneWatch() {
  static ProcessWatch* watch = std::make_unique<ProcessWatch>().release();
  return watch;
}
ProcessWatch& Watch() { return *OneWatch(); }

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
  if (Watch().Looks()) watched_.emplace(Watch().watch(), UsualOne().Of(call));
}

void LimitedCall::WatchThisProcess() {
  ProcessWatch*& watch = OneWatch();
  if (!watch->Looks()) watch = std::make_unique<ProcessWatch>().release();  // who forked us had the other
}

UsualLimit LimitedCall::Usual(UsualLimit limit) { return UsualOne().Set(std::move(limit)); }

void LimitedCall::StopAt(Stop stop) { Watch().StopAt(std::move(stop)); }

void LimitedCall::TellHeld(std::function<void(const PluginCall& call)> tell) {
  Watch().TellHeld(std::move(tell));
}

}  // namespace tidepool
