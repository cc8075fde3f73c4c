#pragma once
// Calls of plug-ins that are under way in this process, each with the time that it may take. A thread cannot
// be taken out of a call that does not come back: who watches says which one it is, and ends the process.
// Thread-safe.

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
  double limit_s = 30;
  std::string key = {};
  // "reward format (format.cc) did not return within 0.5 s (its timeout_s) on sample 5.0.0 (question 41);
  // correct it, or raise its timeout_s"
  [[nodiscard]] std::string Late() const;
};

class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;
  // The loop that watches looks some twenty times a second. When it did not for so long, the process was
  // stopped (SIGSTOP, a suspended machine), or got no turn, and its calls neither: that time does not count.
  static constexpr std::chrono::seconds kAbsence{1};

  // A call is under way while this lives.
  class Call {
   public:
    Call(CallWatch& watch, PluginCall call, Clock::time_point now = Clock::now()) : watch_(watch) {
      const auto limit =
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(call.limit_s));
      std::list<Item> mine{{std::move(call), now + limit}};
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
    std::list<std::pair<PluginCall, Clock::time_point>>::iterator item_;
  };

  // One that is late, if there is one. Of one thread, `now` not before that of the call before.
  std::optional<PluginCall> Overdue(Clock::time_point now) {
    const MutexLock lock(mu_);
    const auto absent = now - std::exchange(looked_, now);
    for (auto& [call, due] : calls_) {
      if (absent > kAbsence) due += absent;
      if (now >= due) return call;
    }
    return std::nullopt;
  }
  // The one that began first of those that are under way.
  std::optional<PluginCall> Oldest() {
    const MutexLock lock(mu_);
    return calls_.empty() ? std::nullopt : std::optional(calls_.front().first);
  }

 private:
  using Item = std::pair<PluginCall, Clock::time_point>;
  Mutex mu_;
  std::list<Item> calls_ TP_GUARDED_BY(mu_);
  Clock::time_point looked_ TP_GUARDED_BY(mu_) = Clock::now();
};

}  // namespace tidepool
