#pragma once
// One end of a session: ordered delivery, exactly once, over any number of connections
// (docs/worker_protocol.md).
//
// Messages that are sent are numbered from 1 and kept until the other end acknowledges them. On a new
// connection each end says what it has taken, and the other goes on behind that. What comes twice is ignored;
// what does not follow the last one taken means that the connection has lost something, and it has to be made
// anew. A session lives as long as (process, controller epoch); Reset begins another one. Pure; not
// thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace tidepool::workers {

// For how long a process dials, and its place is kept for it, without a connection; and for how long a
// connection may be silent. 5 s, because a machine with more processes than cores starves some of them for
// seconds. The permit ends earlier: then a worker serves nothing, and goes on when it hears the controller
// again.
inline double LostAfterSeconds(double permit_s) { return std::max(2 * permit_s, 5.0); }
// The longest time in which the controller says nothing to a worker, so that a permit and the silence below
// stand several losses of what it says.
inline double RenewalSeconds(double permit_s) { return std::max(permit_s / 6, 0.01); }
// Silence after which a worker takes its connection for dead and makes another: before the permit ends, where
// that leaves a busy machine the quarter of a second that it may take between two turns.
inline double SilenceSeconds(double permit_s) { return std::max(permit_s / 2, 0.25); }

// Message has `seq` and `ack`.
template <typename Message>
class Session {
 public:
  enum class Verdict : uint8_t { kNew, kOld, kGap };

  void Reset() { *this = Session(); }

  // --- out
  void Put(Message message) {
    message.seq = ++last_;
    kept_.push_back(std::move(message));
  }
  // A connection is there whose other end has taken everything up to `taken`. False: it cannot have, so the
  // other end is not the one that this session is with.
  [[nodiscard]] bool Connected(int64_t taken) {
    if (taken < acked_ || taken > last_) return false;
    carried_ = taken;
    return true;
  }
  // What this connection has not carried yet, in order; from now on it has.
  std::vector<Message> TakeUnsent() {
    std::vector<Message> out;
    for (auto at = static_cast<size_t>(carried_ - acked_); at < kept_.size(); ++at) {
      out.push_back(kept_[at]);
      out.back().ack = durable_;
    }
    carried_ = last_;
    return out;
  }
  void Acked(int64_t through) {
    for (; acked_ < through && !kept_.empty(); ++acked_) kept_.pop_front();
    if (carried_ < acked_) carried_ = acked_;
  }
  [[nodiscard]] size_t unacknowledged() const { return kept_.size(); }

  // --- in
  Verdict Take(int64_t seq) {
    if (seq <= taken_) return Verdict::kOld;
    if (seq != taken_ + 1) return Verdict::kGap;
    taken_ = seq;
    return Verdict::kNew;
  }
  [[nodiscard]] int64_t taken() const { return taken_; }
  // The effects of all messages up to `through` will not be lost: the other end may forget them.
  void Durable(int64_t through) { durable_ = through > durable_ ? through : durable_; }
  [[nodiscard]] int64_t durable() const { return durable_; }

 private:
  std::deque<Message> kept_;  // acked_ + 1 to last_
  int64_t last_ = 0, acked_ = 0, carried_ = 0;
  int64_t taken_ = 0, durable_ = 0;
};

}  // namespace tidepool::workers
