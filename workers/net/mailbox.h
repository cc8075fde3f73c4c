#pragma once
// A queue between threads: many put, one takes. Every wait has a deadline. Thread-safe.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace tidepool::workers {

template <typename T>
class Mailbox {
 public:
  void Put(T item) {
    {
      const std::lock_guard lock(mu_);
      items_.push_back(std::move(item));
    }
    wake_.notify_one();
  }
  // So that who takes all gets all of them, or none.
  void PutAll(std::vector<T> items) {
    {
      const std::lock_guard lock(mu_);
      for (T& item : items) items_.push_back(std::move(item));
    }
    wake_.notify_one();
  }
  // All items, in order; waits up to `patience` for the first. Empty: none came.
  template <typename Rep, typename Period>
  std::deque<T> TakeAll(std::chrono::duration<Rep, Period> patience) {
    std::unique_lock lock(mu_);
    if (patience.count() > 0) wake_.wait_for(lock, patience, [&] { return !items_.empty(); });
    return std::exchange(items_, {});
  }
  // The first item, in order; waits up to `patience`. Empty: none came.
  template <typename Rep, typename Period>
  std::deque<T> TakeOne(std::chrono::duration<Rep, Period> patience) {
    std::unique_lock lock(mu_);
    wake_.wait_for(lock, patience, [&] { return !items_.empty(); });
    std::deque<T> taken;
    if (!items_.empty()) {
      taken.push_back(std::move(items_.front()));
      items_.pop_front();
    }
    return taken;
  }

 private:
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<T> items_;
};

}  // namespace tidepool::workers
