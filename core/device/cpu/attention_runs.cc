#include "core/device/cpu/attention_runs.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "core/device/cpu/parallel.h"

namespace tidepool::device {

void RunTiles(const AttentionPlan& plan, const std::function<void(const AttentionTile&, int64_t)>& tile) {
  const size_t parts = plan.parts_tiles.size(), all = parts + plan.tiles.size();
  const int64_t threads = std::min(Threads(), static_cast<int64_t>(all));
  std::atomic<size_t> next = 0, parts_done = 0;
  const auto work = [&](int64_t thread) {
    for (size_t i = next++; i < all; i = next++) {
      if (i < parts) {
        tile(plan.parts_tiles[i], thread);
        parts_done.fetch_add(1, std::memory_order_release);
        continue;
      }
      // The last parts are being computed by other threads.
      while (parts_done.load(std::memory_order_acquire) < parts) std::this_thread::yield();
      tile(plan.tiles[i - parts], thread);
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
  const auto cells = static_cast<int64_t>(plan.cells.size());
  std::mutex mu;
  std::deque<int64_t> ready;  // cell * kv_heads + kv_head; under mu, like what follows
  std::vector<int32_t> waits;
  int64_t left = cells * kv_heads;
  for (int64_t i = 0; i < left; ++i) {
    waits.push_back(plan.waits[static_cast<size_t>(i / kv_heads)]);
    if (waits.back() == 0) ready.push_back(i);
  }
  const auto work = [&](int64_t thread) {
    std::unique_lock lock(mu);
    while (left > 0) {
      if (ready.empty()) {  // what is missing is being computed and takes microseconds
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
        continue;
      }
      const int64_t task = ready.front(), cell = task / kv_heads, kv = task % kv_heads;
      ready.pop_front();
      lock.unlock();
      body(cell, kv, thread);
      lock.lock();
      --left;
      for (const auto* next : {&plan.next_rows, &plan.next_slots}) {
        const int64_t after = (*next)[static_cast<size_t>(cell)];
        if (after >= 0 && --waits[static_cast<size_t>(after * kv_heads + kv)] == 0)
          ready.push_back(after * kv_heads + kv);
      }
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
