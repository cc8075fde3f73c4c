#include "core/base/limited_call.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
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
  void StopIf(std::function<bool()> stop) {
    const MutexLock lock(mu_);
    stop_ = std::move(stop);
  }

 private:
  [[noreturn]] void Look() {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
      if (const auto late = watch_.Overdue(CallWatch::Clock::now()))
        RunningCall::End(late->what, late->Late());
      const MutexLock lock(mu_);
      if (stop_ && stop_()) {
        if (const auto call = watch_.Oldest())
          RunningCall::End(call->what, "stopped by a signal while it ran " + call->what + " on " + call->on);
      }
    }
  }

  const pid_t process_ = ::getpid();
  CallWatch watch_;
  Mutex mu_;
  std::function<bool()> stop_ TP_GUARDED_BY(mu_);
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

void LimitedCall::StopIf(std::function<bool()> stop) { Watch().StopIf(std::move(stop)); }

}  // namespace tidepool
