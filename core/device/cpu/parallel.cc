#include "core/device/cpu/parallel.h"

#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tidepool::device {
namespace {

#if defined(__x86_64__)
inline void Pause() { __builtin_ia32_pause(); }
#else
inline void Pause() {}
#endif

// Asks the system for short turns of this thread. Its share of a core stays what it was; but where other
// processes want the core, too, it waits less long for its next turn, and so does the thread that waits for
// its piece. Linux 6.12 and newer; older ones take no notice.
void AskForShortTurns() {
  struct {  // sched_attr, whose header <sched.h> does not bear beside it
    uint32_t size, sched_policy;
    uint64_t sched_flags;
    int32_t sched_nice;
    uint32_t sched_priority;
    uint64_t sched_runtime, sched_deadline, sched_period;
  } now{};
  now.size = sizeof(now);
  if (syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) != 0 || now.sched_policy != 0) return;
  now.sched_runtime = 100'000;  // ns
  (void)syscall(SYS_sched_setattr, 0, &now, 0);
}

thread_local int64_t thread_index = 0;
thread_local bool in_body = false;

// While it lives the thread takes no signals, nor does one that it makes.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

// The helpers of one thread, which asks for one piece of work after the other.
class Helpers {
 public:
  Helpers() { AskForShortTurns(); }
  ~Helpers() {
    stop_ = true;
    Wake();
    for (std::thread& t : threads_) t.join();  // waits: each sees stop_ after its piece, if it has one
  }

  void Run(int64_t items, int64_t piece, int64_t threads, const std::function<void(int64_t, int64_t)>& body) {
    while (static_cast<int64_t>(threads_.size()) + 1 < threads && Add()) {
    }
    body_ = &body;
    items_ = items;
    piece_ = piece;
    threads_now_ = threads;
    done_.store(0, std::memory_order_relaxed);
    const auto pieces = static_cast<uint64_t>((items + piece - 1) / piece);
    // Who takes a piece knows by the number of the round that body_ and the others are this round's.
    round_ = round_ + 1;
    work_.store(round_ << kLeftBits | pieces, std::memory_order_seq_cst);  // before asleep_ is read
    if (asleep_.load(std::memory_order_seq_cst) > 0) Wake();
    in_body = true;
    while (TakeOne()) {
    }
    in_body = false;
    WaitFor(static_cast<uint32_t>(pieces));
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr int kLeftBits = 32;
  static constexpr uint64_t kLeft = (uint64_t{1} << kLeftBits) - 1;
  static constexpr int64_t kSpins = 2000;  // some tens of microseconds

  // Until what is missing has been computed. Not by giving the core away: who takes it keeps it for
  // milliseconds.
  void WaitFor(uint32_t pieces) {
    for (int64_t turns = 0; turns < kSpins; ++turns) {
      if (done_.load(std::memory_order_acquire) == pieces) return;
      Pause();
    }
    waiting_.store(true, std::memory_order_seq_cst);
    for (uint32_t now = done_.load(std::memory_order_seq_cst); now != pieces;
         now = done_.load(std::memory_order_seq_cst))
      done_.wait(now);  // waits: for helpers that are in a piece
    waiting_.store(false, std::memory_order_relaxed);
  }

  // Takes the next piece, if one is left.
  bool TakeOne() {
    uint64_t now = work_.load(std::memory_order_acquire);
    while ((now & kLeft) != 0) {
      if (!work_.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel)) continue;
      const auto pieces = (items_ + piece_ - 1) / piece_;
      const int64_t begin = (pieces - static_cast<int64_t>(now & kLeft)) * piece_;
      try {
        (*body_)(begin, std::min(items_, begin + piece_));
      } catch (...) {
        const std::lock_guard lock(error_mu_);
        if (error_ == nullptr) error_ = std::current_exception();
      }
      done_.fetch_add(1, std::memory_order_seq_cst);
      if (waiting_.load(std::memory_order_seq_cst)) done_.notify_all();
      return true;
    }
    return false;
  }

  // False: the system makes no more threads, so those that are there do the work.
  bool Add() {
    const auto index = static_cast<int64_t>(threads_.size()) + 1;
    const NoSignals without;  // they are for the threads that were there before
    try {
      threads_.emplace_back([this, index] { Help(index); });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void Help(int64_t index) {
    AskForShortTurns();
    thread_index = index;
    in_body = true;
    int64_t idle = 0;
    while (!stop_) {
      const uint32_t bell = bell_.load(std::memory_order_acquire);
      if (index < threads_now_.load(std::memory_order_relaxed) && TakeOne()) {
        idle = 0;
      } else if (++idle < kSpins) {
        Pause();
      } else {
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        // waits: for work, which rings the bell; so does the end
        if ((work_.load(std::memory_order_seq_cst) & kLeft) == 0 && !stop_) bell_.wait(bell);
        asleep_.fetch_sub(1, std::memory_order_relaxed);
        idle = 0;
      }
    }
  }
  void Wake() {
    bell_.fetch_add(1, std::memory_order_release);
    bell_.notify_all();
  }

  std::vector<std::thread> threads_;  // waits: joined by the destructor, which ends them
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t items_ = 0, piece_ = 1;
  std::atomic<int64_t> threads_now_ = 1;
  uint64_t round_ = 0;
  std::atomic<uint64_t> work_ = 0;  // number of the round, and its pieces that nobody has taken
  std::atomic<uint32_t> done_ = 0;  // pieces of the round
  std::atomic<bool> waiting_ = false;
  std::atomic<uint32_t> bell_ = 0;
  std::atomic<int> asleep_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex error_mu_;
  std::exception_ptr error_;
};

}  // namespace

int64_t ThreadIndex() { return thread_index; }
int64_t Threads() { return std::max(1, at::get_num_threads()); }

void ParallelPieces(int64_t items, int64_t piece, const std::function<void(int64_t, int64_t)>& body) {
  if (items <= 0) return;
  const int64_t threads = in_body ? 1 : std::min(Threads(), (items + piece - 1) / piece);
  if (threads == 1) return body(0, items);
  thread_local Helpers helpers;
  helpers.Run(items, piece, threads, body);
}

void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body,
                   int64_t pieces_each) {
  // 32k operations are about what it takes to wake another thread.
  const int64_t least = std::max<int64_t>(1, 32768 / std::max<int64_t>(cost, 1));
  if (items <= least || in_body) {
    if (items > 0) body(0, items);
    return;
  }
  // Some pieces for each thread, so that one that comes late leaves the rest to the others.
  const int64_t pieces = pieces_each * Threads();
  ParallelPieces(items, std::max(least, (items + pieces - 1) / pieces), body);
}

}  // namespace tidepool::device
