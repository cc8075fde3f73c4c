#pragma once
// Calls of plug-ins that are under way in this process, each with the time that it may take. A thread cannot
// be taken out of a call that does not come back: who watches says which one it is, and ends the process.
// Thread-safe.

#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool {

// A call: of which plug-in (with its file), on what, how long it may take, and the key that says so ("its
// timeout_s"); empty: nobody can set it.
struct PluginCall {
  std::string what, on;
  std::optional<double> limit_s = {};  // none: 30 s, of a LimitedCall what the process has as usual
  std::string key = {};
  // "reward format (format.cc) did not return within 0.5 s (its timeout_s) on sample 5.0.0 (question 41);
  // correct it, or raise its timeout_s"
  [[nodiscard]] std::string Late() const;
  [[nodiscard]] double Seconds() const { return limit_s.value_or(30); }
};

class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;

 private:
  struct Item {
    PluginCall call;
    Clock::time_point begun, due;
  };

 public:
  // The loop that watches looks some twenty times a second. When it did not for so long, the process was
  // stopped (SIGSTOP, a suspended machine), or got no turn, and its calls neither: that time does not count.
  // Of a call that began meanwhile it is the time since: who looks during calls alone has looked at nothing
  // before.
  static constexpr std::chrono::seconds kAbsence{1};

  // A call is under way while this lives.
  class Call {
   public:
    Call(CallWatch& watch, PluginCall call, Clock::time_point now = Clock::now()) : watch_(watch) {
      const auto limit =
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(call.Seconds()));
      std::list<Item> mine{{.call = std::move(call), .begun = now, .due = now + limit}};
      item_ = mine.begin();
      const MutexLock lock(watch_.mu_);
      watch_.calls_.splice(watch_.calls_.end(), mine);
    }
    ~Call() {
      const MutexLock lock(watch_.mu_);
      watch_.calls_.erase(item_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    friend class CallWatch;
    CallWatch& watch_;
    std::list<Item>::iterator item_;
  };

  // One that is late, if there is one. Of one thread, `now` not before that of the call before.
  std::optional<PluginCall> Overdue(Clock::time_point now) {
    const MutexLock lock(mu_);
    const auto looked = std::exchange(looked_, now);
    for (auto& [call, begun, due] : calls_) {
      const auto absent = now - std::max(looked, begun);
      if (absent > kAbsence) due += absent;
      if (now >= due) return call;
    }
    return std::nullopt;
  }
  // The one that began first of those that are under way.
  struct UnderWay {
    PluginCall call;
    Clock::time_point begun;
  };
  std::optional<UnderWay> Oldest() {
    const MutexLock lock(mu_);
    if (calls_.empty()) return std::nullopt;
    return UnderWay{calls_.front().call, calls_.front().begun};
  }

 private:
  Mutex mu_;
  std::list<Item> calls_ TP_GUARDED_BY(mu_);
  Clock::time_point looked_ TP_GUARDED_BY(mu_) = Clock::now();
};

}  // namespace tidepool
