#pragma once
// A queue between threads: many put, one takes. Every wait has a deadline. Thread-safe.

#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "core/base/thread_annotations.h"

namespace tidepool::workers {

template <typename T>
class Mailbox {
 public:
  void Put(T item) {
    {
      const MutexLock lock(mu_);
      items_.push_back(std::move(item));
    }
    wake_.NotifyAll();
  }
  // So that who takes all gets all of them, or none.
  void PutAll(std::vector<T> items) {
    {
      const MutexLock lock(mu_);
      for (T& item : items) items_.push_back(std::move(item));
    }
    wake_.NotifyAll();
  }
  // All items, in order; waits up to `patience` for the first. Empty: none came.
  template <typename Rep, typename Period>
  std::deque<T> TakeAll(std::chrono::duration<Rep, Period> patience) {
    const MutexLock lock(mu_);
    if (patience.count() > 0) WaitForAny(patience);
    return std::exchange(items_, {});
  }
  // The first items, up to `most`, in order; waits up to `patience` for one. Empty: none came.
  template <typename Rep, typename Period>
  std::vector<T> Take(std::chrono::duration<Rep, Period> patience, size_t most) {
    const MutexLock lock(mu_);
    WaitForAny(patience);
    std::vector<T> taken;
    for (; taken.size() < most && !items_.empty(); items_.pop_front())
      taken.push_back(std::move(items_.front()));
    return taken;
  }

 private:
  template <typename Rep, typename Period>
  void WaitForAny(std::chrono::duration<Rep, Period> patience) TP_REQUIRES(mu_) {
    (void)wake_.WaitFor(mu_, patience, [&]() TP_REQUIRES(mu_) { return !items_.empty(); });
  }

  Mutex mu_;
  Condition wake_;
  std::deque<T> items_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
