#pragma once
// Which mutex guards what, checked by clang (-Wthread-safety); nothing for other compilers. The library's
// std::mutex has no annotations of its own, so a class that wants the check uses Mutex and MutexLock.
//
// TP_GUARDED_BY(mu) stands behind a member that is only touched with `mu` held, TP_REQUIRES(mu) behind a
// function that is only called so, TP_EXCLUDES(mu) behind one that takes it itself.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#if defined(__clang__)
#define TP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TP_THREAD_ANNOTATION(x)
#endif

#define TP_CAPABILITY(x) TP_THREAD_ANNOTATION(capability(x))
#define TP_SCOPED_CAPABILITY TP_THREAD_ANNOTATION(scoped_lockable)
#define TP_GUARDED_BY(x) TP_THREAD_ANNOTATION(guarded_by(x))
#define TP_REQUIRES(...) TP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TP_ACQUIRE(...) TP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TP_RELEASE(...) TP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TP_EXCLUDES(...) TP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace tidepool {

class TP_CAPABILITY("mutex") Mutex {
 public:
  void lock() TP_ACQUIRE() { mu_.lock(); }
  void unlock() TP_RELEASE() { mu_.unlock(); }

 private:
  std::mutex mu_;
};

class TP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) TP_ACQUIRE(mu) : mu_(mu) { mu_.lock(); }
  ~MutexLock() TP_RELEASE() { mu_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Waits with a Mutex that is held. There is no wait without a time: whoever waits looks again. A lambda that
// is given to it says TP_REQUIRES(mu) behind its parameters.
class Condition {
 public:
  void NotifyAll() { changed_.notify_all(); }
  template <typename Rep, typename Period>
  void WaitFor(Mutex& mu, std::chrono::duration<Rep, Period> patience) TP_REQUIRES(mu) {
    changed_.wait_for(mu, patience);
  }
  // Until `done()`. False: it is not, and the time is over.
  template <typename Rep, typename Period, typename Done>
  bool WaitFor(Mutex& mu, std::chrono::duration<Rep, Period> patience, Done done) TP_REQUIRES(mu) {
    return changed_.wait_for(mu, patience, std::move(done));
  }
  // Until the end is asked for.
  template <typename Rep, typename Period>
  void WaitFor(Mutex& mu, const std::stop_token& stop, std::chrono::duration<Rep, Period> patience)
      TP_REQUIRES(mu) {
    changed_.wait_for(mu, stop, patience, [] { return false; });
  }

 private:
  std::condition_variable_any changed_;
};

}  // namespace tidepool
