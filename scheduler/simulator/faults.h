#pragma once
// What goes wrong in a rehearsal (net, disk, operator, workers). All of it is drawn from the
// seed; nothing goes wrong by itself.
//
// Messages of one worker arrive in the order in which they were sent, as the product's connections keep it,
// whatever delays and losses do to single ones: what is late holds back what comes after it. Between workers
// everything is reordered.

#include <cstdint>

#include "core/base/rng.h"

namespace tidepool::scheduler {

// ..._mean_s: mean of exponential gaps in virtual seconds, 0: never. Chances are per message or operation.
struct FaultShape {
  // net
  double delay_spread =
      0;  // of a message's delay: between 1 - spread and 1 + spread times the job's; at most 1
  double loss = 0, resend_s = 0.2;  // a lost message is sent again so much later
  double duplicate = 0;             // it arrives twice; of tokens the reply window lets one through
  double partition_mean_s = 0,
         partition_s = 10;  // one way: nothing that one worker says arrives for so long; then all of it does
  // workers
  double kill_mean_s = 0;  // some worker process dies
  double hang_mean_s = 0;  // some worker process falls silent for good
  double restart_s = 5;    // of a process, until it says hello
  double slow_share = 0,
         slow_factor = 4;  // this share of the slots takes so many times longer for every step
  // disk
  double write_s = 0.001;  // of a payload
  double disk_slow_mean_s = 0, disk_slow_s = 30,
         disk_slow_factor = 100;  // for so long every write takes so many times longer
  double checkpoint_fails = 0;    // ENOSPC, EIO
  double checkpoint_s = 1;        // until it is written and read back
  // operator
  double stop_at_s = 0;               // SIGTERM, once
  double controller_kill_mean_s = 0;  // kill -9 of the controller, and with it of all workers
  double resume_s = 10;               // after a stop or a kill the run is started again so much later

  [[nodiscard]] bool any() const {
    return delay_spread > 0 || loss > 0 || duplicate > 0 || partition_mean_s > 0 || kill_mean_s > 0 ||
           hang_mean_s > 0 || slow_share > 0 || disk_slow_mean_s > 0 || checkpoint_fails > 0 ||
           stop_at_s > 0 || controller_kill_mean_s > 0;
  }
};

// The dice, in streams of their own: one more draw of one kind shifts nothing of another.
class FaultDealer {
 public:
  FaultDealer(const FaultShape& shape, uint64_t seed)
      : shape_(shape),
        net_(Rng(seed).Fork("net")),
        disk_(Rng(seed).Fork("disk")),
        workers_(Rng(seed).Fork("workers")) {}

  [[nodiscard]] const FaultShape& shape() const { return shape_; }
  // Of a message that takes `base` seconds on a quiet day.
  double MessageDelay(double base) {
    double delay = base;
    if (shape_.delay_spread > 0) delay *= 1 + shape_.delay_spread * (2 * net_.Uniform() - 1);
    while (Hit(net_, shape_.loss)) delay += shape_.resend_s;
    return delay;
  }
  bool Duplicate() { return Hit(net_, shape_.duplicate); }
  bool CheckpointFails() { return Hit(disk_, shape_.checkpoint_fails); }
  // Seconds to the next one of a kind; `mean` > 0.
  double Gap(double mean);
  int64_t Choose(int64_t n) { return workers_.Below(n); }
  // The slot is one of the slow ones.
  [[nodiscard]] bool Slow(int64_t slot, uint64_t seed) const;
  void Count() { ++dealt_; }
  [[nodiscard]] int64_t dealt() const { return dealt_; }  // faults so far

 private:
  bool Hit(Rng& rng, double chance) {
    const bool hit = chance > 0 && rng.Chance(chance);
    dealt_ += hit ? 1 : 0;
    return hit;
  }
  FaultShape shape_;
  Rng net_, disk_, workers_;
  int64_t dealt_ = 0;
};

}  // namespace tidepool::scheduler
