#include "core/base/disk_thread.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool {
namespace {
using Clock = std::chrono::steady_clock;

// What was given up may go on at any time, and be in a library whose globals the end of the process takes
// away under it: a segmentation fault in place of the exit code. So the process ends without them. What is
// registered now runs before the destructors of all that is there now.
void EndWithoutGlobals() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          ::_exit(status);
        },
        nullptr);
  });
}
}  // namespace

struct DiskThread::State {
  struct Work {
    std::string operation;
    std::function<void(const Say&)> work;
  };
  Mutex mu;
  Condition changed;
  std::deque<Work> queue TP_GUARDED_BY(mu);
  std::optional<std::string> doing TP_GUARDED_BY(mu);
  Clock::time_point since TP_GUARDED_BY(mu);
  bool stop TP_GUARDED_BY(mu) = false;

  void Say(std::string operation) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    doing = std::move(operation);
    since = Clock::now();
  }

  // The next work; empty: there is none, and the thread is to end.
  std::optional<Work> Next() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    doing.reset();
    changed.NotifyAll();
    while (queue.empty() && !stop) changed.WaitFor(mu, std::chrono::seconds(1));
    if (queue.empty()) return std::nullopt;
    Work next = std::move(queue.front());
    queue.pop_front();
    doing = next.operation;
    since = Clock::now();
    return next;
  }

  void Run() {
    const DiskThread::Say say = [this](std::string operation) { Say(std::move(operation)); };
    while (auto next = Next()) next->work(say);
  }
};

DiskThread::DiskThread() : state_(std::make_shared<State>()) {
  // It owns what it needs, so nobody has to wait for it: see the destructor.
  std::thread([state = state_] { state->Run(); }).detach();
}

DiskThread::~DiskThread() {
  {
    const MutexLock lock(state_->mu);
    state_->stop = true;
    state_->changed.NotifyAll();
  }
  if (!Drain(kPatience)) EndWithoutGlobals();  // one that hangs is given up here
}

void DiskThread::Do(std::string operation, std::function<void(const Say&)> work) {
  const MutexLock lock(state_->mu);
  state_->queue.push_back({std::move(operation), std::move(work)});
  state_->changed.NotifyAll();
}

std::optional<DiskThread::Operation> DiskThread::Busy() const {
  const MutexLock lock(state_->mu);
  if (!state_->doing) return std::nullopt;
  return Operation{*state_->doing, Clock::now() - state_->since};
}

bool DiskThread::Drain(Clock::duration patience) {
  const auto until = Clock::now() + patience;
  const MutexLock lock(state_->mu);
  while (!state_->queue.empty() || state_->doing) {
    if (Clock::now() >= until) return false;
    state_->changed.WaitFor(state_->mu, until - Clock::now());
  }
  return true;
}

}  // namespace tidepool
