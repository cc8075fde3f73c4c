#pragma once
// The turns that an environment worker was given and has not answered: those that can be played, in their
// order, and those whose game had no room to begin, which wait beside them so that the games that are open go
// on.
//
// A turn without room is taken again when a game ends here, and after growing waits, because room may come
// from elsewhere. A turn of an attempt that nobody plays any more is still taken, so that it is answered; it
// is not wanted. Thread-safe.

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/ids.h"
#include "core/base/thread_annotations.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class TurnQueue {
 public:
  using Clock = std::chrono::steady_clock;
  struct Turn {
    down::EnvStep step;
    Clock::time_point at;  // when it was given
    bool wanted = true;
    [[nodiscard]] bool had_no_room() const { return wait.count() > 0; }

   private:
    friend class TurnQueue;
    int64_t number = 0;  // in the order in which they were given
    std::chrono::milliseconds wait{0};
    Clock::time_point again;
  };

  void Put(down::EnvStep step);
  // The next one; waits up to `patience` for it. Whoever takes it calls Done or NoRoom.
  std::optional<Turn> Take(std::chrono::milliseconds patience);
  // Its game could not begin. It is taken again later.
  void NoRoom(Turn turn);
  // It was played or is given up. `freed`: a game has ended with it. False: nobody plays the attempt any
  // more, and what is held of it can go.
  bool Done(const Turn& turn, bool freed);
  // Nobody plays the attempt any more. Turns of it that are given later are wanted.
  void End(const SampleId& tid, int32_t att);
  void Clear();

 private:
  // The oldest one that had no room.
  void TryOneAgain() TP_REQUIRES(mu_);
  [[nodiscard]] bool Wanted(const Turn& turn) const TP_REQUIRES(mu_);

  Mutex mu_;
  Condition wake_;
  std::deque<Turn> turns_ TP_GUARDED_BY(mu_), without_room_ TP_GUARDED_BY(mu_);
  std::set<int64_t> unanswered_ TP_GUARDED_BY(mu_);
  struct Ended {
    int32_t att = 0;
    int64_t number = 0;  // of the turn that was given last before
  };
  std::map<SampleId, Ended> ended_ TP_GUARDED_BY(mu_);  // while turns from before are unanswered
  int64_t given_ TP_GUARDED_BY(mu_) = 0;
};

}  // namespace tidepool::workers
