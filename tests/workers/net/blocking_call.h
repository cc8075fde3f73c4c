#pragma once
// A call that waits within, on one line of virtual time: it has a thread, which runs only while Resume waits
// for it. So there is one order of things, the same for every run of a seed.

#include <functional>
#include <semaphore>
#include <thread>
#include <utility>

namespace tidepool::workers {

class BlockingCall {
 public:
  explicit BlockingCall(std::function<void()> what)
      : thread_([this, what = std::move(what)] {
          go_.acquire();
          what();
          ended_ = true;
          back_.release();
        }) {}
  // Runs it until it waits or ends.  requires that it has not ended. True: it has ended now.
  bool Resume() {
    go_.release();
    back_.acquire();
    return ended_;
  }
  // Within the call: back to Resume, until the next one.
  void Wait() {
    back_.release();
    go_.acquire();
  }

 private:
  std::binary_semaphore go_{0}, back_{0};
  bool ended_ = false;
  std::jthread thread_;  // waits: requires that the call has ended
};

}  // namespace tidepool::workers
