#pragma once
// The transitions that an off-policy algorithm learns from: the newest `capacity` of all that ever came, in a
// ring. A fragment is trained when it enters; what is drawn afterwards is the learner's own affair, and a
// part of its state: State() goes into checkpoints, recovery copies and to newcomers with the weights.
//
// A transition is a row of float32: observation, action (squashed, in [-1, 1]), reward, terminated, next
// observation. What follows a truncated step is the episode's own last observation, not the next one's first,
// and it counts as going on; what follows a terminated one is of no interest, and zeros. Not thread-safe, but
// State's bytes may be read by others while nothing is added.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/policy/fragment.h"
#include "core/policy/spec.h"
#include "core/train/optimizer.h"

namespace tidepool::policy {

class ReplayStore {
 public:
  // Memory of the device, which is the host's: that of rows that never came is not taken from the system.
  // kResourceExhausted; kInvalidArgument: no capacity.
  static StatusOr<ReplayStore> Create(const PolicySpec& spec, int64_t capacity, device::Device& device);

  // In order of steps, then instances. requires CheckFragment.
  void Add(const SampleId& tid, const Fragment& fragment);
  [[nodiscard]] int64_t size() const;                            // transitions that are here
  [[nodiscard]] int64_t came() const { return head_->came; }     // that ever came
  [[nodiscard]] uint64_t taken() const { return head_->taken; }  // core/base/replay_digest.h
  [[nodiscard]] int64_t width() const { return width_; }         // numbers of a transition
  // requires 0 <= index < size()
  [[nodiscard]] std::span<const float> Row(int64_t index) const {
    return {rows() + index * width_, static_cast<size_t>(width_)};
  }
  // Of every row that is here and what was taken in: the bytes themselves.
  [[nodiscard]] uint64_t Digest() const;
  std::vector<train::NamedBytes> State();
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Head {
    int64_t came = 0;
    uint64_t taken = 0;
  };
  ReplayStore() = default;
  [[nodiscard]] float* rows() const { return static_cast<float*>(rows_->data()); }

  PolicySpec spec_;
  int64_t capacity_ = 0, width_ = 0;
  std::shared_ptr<device::Buffer> rows_;
  std::unique_ptr<Head> head_;  // at one address, for State
};

}  // namespace tidepool::policy
