#pragma once
// What goes wrong in a rehearsal (net, disk, operator, workers). All of it is drawn from the
// seed; nothing goes wrong by itself.
//
// Messages of one worker arrive in the order in which they were sent, as the product's connections keep it,
// whatever delays and losses do to single ones: what is late holds back what comes after it. Between workers
// everything is reordered.

#include <cstdint>

#include "core/base/fault_shape.h"
#include "core/base/rng.h"

namespace tidepool::scheduler {

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
