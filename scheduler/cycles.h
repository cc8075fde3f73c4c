#pragma once
// What steps took from batch to batch, with the number of slots that trained them: by that the elastic
// placement judges a number.
//
// A cycle begins when a batch is ready and ends when the next one is. In it slots leave, train and come back,
// weights are published, and what the next batch lacks is generated. The time in which newcomers get the
// trainer's state and slots find each other is left out: it is paid once for another number, and said apart.
// Cycles in which something else decided (a step that was called off, a lost worker, an evaluation, a
// checkpoint) are not kept. Pure; not thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/time.h"

namespace tidepool::scheduler {

struct Cycle {
  int64_t slots = 0;  // that trained
  int64_t live = 0;   // that had a worker
  double seconds = 0;
  double train_s = 0;  // of them: the step
  double tokens = 0;   // of its batch
};

class Cycles {
 public:
  // Some batch may be trained: the cycle of the one before is over, if that one was trained.
  void BatchReady(TimePoint now, int64_t live);
  void GroupFormed(double seconds);  // by other slots than trained before
  void Trained(int64_t slots, double train_s, double tokens);
  void Disturbed() { disturbed_ = true; }

  [[nodiscard]] std::span<const Cycle> all() const { return cycles_; }  // the newest last
  [[nodiscard]] double group_s() const { return group_s_; }  // smoothed seconds of GroupFormed; 0: not known

 private:
  std::vector<Cycle> cycles_;
  std::optional<TimePoint> begun_;
  Cycle current_;  // slots: 0 until it was trained
  double formed_s_ = 0, group_s_ = 0;
  bool disturbed_ = false;
};

}  // namespace tidepool::scheduler
