#include "workers/side/turn_queue.h"

#include <algorithm>

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{20}, kLongestWait{1000};

}  // namespace

void TurnQueue::Put(down::EnvStep step) {
  {
    const MutexLock lock(mu_);
    Turn turn;
    turn.step = std::move(step);
    turn.at = Clock::now();
    turn.number = ++given_;
    unanswered_.insert(turn.number);
    turns_.push_back(std::move(turn));
  }
  wake_.NotifyAll();
}

std::optional<TurnQueue::Turn> TurnQueue::Take(milliseconds patience) {
  const auto until = Clock::now() + patience;
  const MutexLock lock(mu_);
  for (;;) {
    const auto now = Clock::now();
    auto again = std::ranges::find_if(
        without_room_, [&](const Turn& t) TP_REQUIRES(mu_) { return t.again <= now || !Wanted(t); });
    std::deque<Turn>& from = again != without_room_.end() ? without_room_ : turns_;
    if (!from.empty()) {
      const auto next = again != without_room_.end() ? again : turns_.begin();
      Turn turn = std::move(*next);
      from.erase(next);
      turn.wanted = Wanted(turn);
      return turn;
    }
    auto wake = until;
    for (const Turn& t : without_room_) wake = std::min(wake, t.again);
    if (now >= until) return std::nullopt;
    wake_.WaitFor(mu_, wake - now);
  }
}

void TurnQueue::NoRoom(Turn turn) {
  const MutexLock lock(mu_);
  turn.wait = std::clamp(2 * turn.wait, kFirstWait, kLongestWait);
  turn.again = Clock::now() + turn.wait;
  without_room_.insert(std::ranges::upper_bound(without_room_, turn.number, {}, &Turn::number),
                       std::move(turn));
}

bool TurnQueue::Done(const Turn& turn, bool freed) {
  bool wanted = true;
  {
    const MutexLock lock(mu_);
    wanted = Wanted(turn);
    unanswered_.erase(turn.number);
    const int64_t oldest = unanswered_.empty() ? given_ + 1 : *unanswered_.begin();
    std::erase_if(ended_, [&](const auto& e) { return e.second.number < oldest; });
    if (freed || !wanted) TryOneAgain();
  }
  wake_.NotifyAll();
  return wanted;
}

void TurnQueue::End(const SampleId& tid, int32_t att) {
  {
    const MutexLock lock(mu_);
    if (!unanswered_.empty()) ended_[tid] = {att, given_};
    TryOneAgain();
  }
  wake_.NotifyAll();
}

void TurnQueue::TryOneAgain() {
  if (!without_room_.empty()) without_room_.front().again = Clock::time_point();
}

bool TurnQueue::Wanted(const Turn& turn) const {
  const auto ended = ended_.find(turn.step.tid);
  return ended == ended_.end() || ended->second.att < turn.step.att || ended->second.number < turn.number;
}

void TurnQueue::Clear() {
  const MutexLock lock(mu_);
  turns_.clear();
  without_room_.clear();
  unanswered_.clear();
  ended_.clear();
}

}  // namespace tidepool::workers
