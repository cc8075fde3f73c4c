#pragma once
// Threads of the CPU device. A thread that computes has helpers of its own, at::get_num_threads() - 1 of
// them.
//
// Work is handed out in small pieces, and whoever asked for it takes part: a helper that the system does not
// run, because another process has its core, holds nobody up for longer than one piece. Helpers look for work
// for some microseconds, then they sleep.

#include <cstdint>
#include <functional>

namespace tidepool::device {

// Splits [0, items) over the threads where the work is worth it. `cost`: rough float operations an item.
// Inside a body it runs on the thread that called it. An exception of a body is thrown here, when all pieces
// are done. pieces_each: for each thread; few where every piece has work of its own.
void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body,
                   int64_t pieces_each = 4);

// Runs body(begin, end) over [0, items) in pieces of `piece`, as threads are free.
void ParallelPieces(int64_t items, int64_t piece, const std::function<void(int64_t, int64_t)>& body);

// Of the thread in a body, below Threads(); 0 outside.
int64_t ThreadIndex();
int64_t Threads();

}  // namespace tidepool::device
