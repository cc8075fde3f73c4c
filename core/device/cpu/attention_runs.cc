#include "core/device/cpu/attention_runs.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/device/cpu/parallel.h"

namespace tidepool::device {

void RunTiles(const AttentionPlan& plan, const std::function<void(const AttentionTile&, int64_t)>& tile) {
  const size_t parts = plan.parts_tiles.size(), all = parts + plan.tiles.size();
  const int64_t threads = std::min(Threads(), static_cast<int64_t>(all));
  std::atomic<size_t> next = 0, parts_done = 0;
  std::atomic<bool> failed = false;  // of one thread's tile, which throws; the others end
  const auto work = [&](int64_t thread) {
    for (size_t i = next++; i < all && !failed; i = next++) {
      // The last parts are being computed by other threads.
      while (i >= parts && parts_done.load(std::memory_order_acquire) < parts) {
        if (failed) return;
        std::this_thread::yield();
      }
      try {
        tile(i < parts ? plan.parts_tiles[i] : plan.tiles[i - parts], thread);
      } catch (...) {
        failed = true;
        throw;
      }
      if (i < parts) parts_done.fetch_add(1, std::memory_order_release);
    }
  };
  if (threads <= 1 || plan.cost < 30000)
    return work(0);  // cycles: twice what it takes to wake another thread
  ParallelPieces(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(ThreadIndex());
  });
}

void RunCells(const AttentionBackwardPlan& plan, int64_t kv_heads,
              const std::function<void(int64_t, int64_t, int64_t)>& body) {
  constexpr int kLooks = 100;  // some tens of microseconds, where each thread has a core
  const auto cells = static_cast<int64_t>(plan.cells.size());
  std::mutex mu;
  std::condition_variable wake;
  std::deque<int64_t> ready;  // cell * kv_heads + kv_head; under mu, like what follows
  std::vector<int32_t> waits;
  int64_t left = cells * kv_heads, asleep = 0;
  bool failed = false;               // in one thread, which throws; the others end
  std::atomic<int64_t> changes = 0;  // written under mu: of ready, and the end
  for (int64_t i = 0; i < left; ++i) {
    waits.push_back(plan.waits[static_cast<size_t>(i / kv_heads)]);
    if (waits.back() == 0) ready.push_back(i);
  }
  const auto ended = [&] { return left == 0 || failed; };
  const auto work = [&](int64_t thread) {
    std::unique_lock lock(mu);
    while (!ended()) {
      if (ready.empty()) {  // what is missing is being computed and takes microseconds
        const int64_t seen = changes;
        lock.unlock();
        for (int i = 0; i < kLooks && changes == seen; ++i) std::this_thread::yield();
        lock.lock();
        ++asleep;
        // waits: for other threads' bodies; with more threads than cores, of which they would take turns
        wake.wait(lock, [&] { return ended() || !ready.empty(); });
        --asleep;
        continue;
      }
      const int64_t task = ready.front(), cell = task / kv_heads, kv = task % kv_heads;
      ready.pop_front();
      const bool more = !ready.empty() && asleep > 0;
      lock.unlock();
      if (more) wake.notify_one();
      std::exception_ptr error;
      try {
        body(cell, kv, thread);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --left;
      if (error != nullptr) failed = true;
      for (const auto* next : {&plan.next_rows, &plan.next_slots}) {
        const int64_t after = (*next)[static_cast<size_t>(cell)];
        if (after >= 0 && --waits[static_cast<size_t>(after * kv_heads + kv)] == 0)
          ready.push_back(after * kv_heads + kv);
      }
      ++changes;
      if (ended() && asleep > 0) wake.notify_all();
      if (error != nullptr) std::rethrow_exception(error);
    }
  };
  // One cell is worth another thread from some tens of rows on; smaller ranges come many at a time.
  const int64_t threads = std::min(Threads(), left);
  if (threads == 1) return work(0);
  ParallelPieces(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(ThreadIndex());
  });
}

}  // namespace tidepool::device
