#include "scheduler/cycles.h"

#include <algorithm>

namespace tidepool::scheduler {
namespace {

constexpr size_t kKept = 256;
constexpr double kGroupWeight = 0.3;

}  // namespace

void Cycles::BatchReady(TimePoint now, int64_t live) {
  if (begun_ && current_.slots == 0) return;  // the same batch, or one in its place
  if (begun_ && !disturbed_ && current_.live == live) {
    current_.seconds = std::max(0.0, Seconds(now - *begun_) - formed_s_);
    if (cycles_.size() == kKept) cycles_.erase(cycles_.begin());
    cycles_.push_back(current_);
  }
  begun_ = now;
  current_ = {.live = live};
  formed_s_ = 0;
  disturbed_ = false;
}

void Cycles::GroupFormed(double seconds) {
  formed_s_ += seconds;
  group_s_ = group_s_ == 0 ? seconds : (1 - kGroupWeight) * group_s_ + kGroupWeight * seconds;
}

void Cycles::Trained(int64_t slots, double train_s, double tokens) {
  current_.slots = slots;
  current_.train_s = train_s;
  current_.tokens = tokens;
}

}  // namespace tidepool::scheduler
