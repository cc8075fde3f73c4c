#pragma once
// A call of a plug-in with a limit, for a thread that nobody watches: a command's only one, the controller's.
// A call that takes longer ends the process with exit code 3, as whoever waits for it could do nothing else:
//
//   error: task gcd (core/tasks/tasks/gcd.cc) did not return within 30 s on question 7; correct it
//
//   question = LimitedCall({.what = "task gcd (...)", .on = "question 7"}).Run(ask);
//
// A call without a limit of its own has the usual one of the process, cluster.plugin_timeout_s.
//
// Where a loop watches the calls of other threads, it has a CallWatch of its own.

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/call_watch.h"
#include "core/base/running_call.h"

namespace tidepool {

// How long a call without a limit of its own may take, and the key that says so.
struct UsualLimit {
  std::optional<double> limit_s = {};  // none: 30 s
  std::string key = {};
};

// What a plug-in threw, with the plug-in and what it was given: "task gcd (gcd.cc) threw an exception on
// question 7: no such place".
class PluginThrew : public std::runtime_error {
 public:
  PluginThrew(const PluginCall& call, const std::exception& e)
      : std::runtime_error(call.what + " threw an exception on " + call.on + ": " + e.what()) {}
  explicit PluginThrew(const PluginCall& call)
      : std::runtime_error(call.what + " threw something that is no std::exception on " + call.on) {}
};

// A RunningCall, so that a crash is told too. The first one of a process starts the thread that watches them
// all, and looks ten times a second.
class LimitedCall {
 public:
  explicit LimitedCall(const PluginCall& call);
  LimitedCall(const LimitedCall&) = delete;
  LimitedCall& operator=(const LimitedCall&) = delete;

  // What `body` returns; for functions that give no Status. PluginThrew: it threw.
  template <typename Body>
  auto Run(Body&& body) const -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& e) {
      throw PluginThrew(call_, e);
    } catch (...) {
      throw PluginThrew(call_);
    }
  }
  // The same as RunningCall::Run.
  template <typename Body>
  Status Run(StatusCode code, Body&& body) const {
    return running_.Run(code, body);
  }

  // Sets the usual limit, and returns the one before. A process reads several configs (of a run, of its warm
  // start, of the run that is gone on with): the limit is that of the config whose plug-ins are called.
  static UsualLimit Usual(UsualLimit limit);
  // For a process that was forked to call plug-ins itself: its calls have their limits, as those of the
  // process before it had. Before it has threads.
  static void WatchThisProcess();
  // For a program that is told to stop on a thread that a call may hold.
  struct Stop {
    std::function<int()> signals;  // for any thread: how many came
    std::chrono::milliseconds patience = std::chrono::seconds(20);
    std::string by = "a signal";
    std::function<void(const std::string& what)> tell = {};  // on the thread that watches; none: on stderr
  };
  // After one signal the call that holds it up is told, and ends the process when it has been under way for
  // `patience` since; after two it does so now.
  static void StopAt(Stop stop);
  // For a process whose users see nothing else of it: a call that has not come back for 5 s, or for half its
  // limit where that is shorter, is told once. `tell` runs on the thread that watches, and on none any more
  // once another one, or none, is set.
  static void TellHeld(std::function<void(const PluginCall& call)> tell);

 private:
  const PluginCall call_;
  const RunningCall running_;
  std::optional<CallWatch::Call> watched_;  // null: in a child that was forked, which has no such thread
};

// Another usual limit for as long as this lives.
class UsualLimitFor {
 public:
  explicit UsualLimitFor(UsualLimit limit) : before_(LimitedCall::Usual(std::move(limit))) {}
  ~UsualLimitFor() { LimitedCall::Usual(std::move(before_)); }
  UsualLimitFor(const UsualLimitFor&) = delete;
  UsualLimitFor& operator=(const UsualLimitFor&) = delete;

 private:
  UsualLimit before_;
};

}  // namespace tidepool
