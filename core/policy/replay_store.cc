#include "core/policy/replay_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/hash.h"
#include "core/base/replay_digest.h"
#include "core/policy/squashed.h"

namespace tidepool::policy {

StatusOr<ReplayStore> ReplayStore::Create(const PolicySpec& spec, int64_t capacity, device::Device& device) {
  if (capacity < 1)
    return InvalidArgument("algorithm.replay.capacity is " + std::to_string(capacity) +
                           "; expected 1 or more");
  ReplayStore store;
  store.spec_ = spec;
  store.capacity_ = capacity;
  store.width_ = spec.transition_size();
  TP_ASSIGN_OR_RETURN(store.rows_, device.Allocate(capacity * store.width_ * 4));
  store.head_ = std::make_unique<Head>();
  store.head_->taken = kEmptyReplay;
  return store;
}

int64_t ReplayStore::size() const { return std::min(head_->came, capacity_); }

void ReplayStore::Add(const SampleId& tid, const Fragment& f) {
  const int64_t seen = f.observation_size, acts = f.action_size;
  int64_t truncated = 0;
  for (int64_t c = 0; c < f.cells(); ++c) {
    float* row = rows() + (head_->came++ % capacity_) * width_;
    const float* observed = f.observations.data() + c * seen;
    row = std::copy_n(observed, seen, row);
    for (int64_t i = 0; i < acts; ++i)
      *row++ = FromBounds(spec_, f.actions[static_cast<size_t>(c * acts + i)]);
    const uint8_t flag = f.flags[static_cast<size_t>(c)];
    *row++ = f.rewards[static_cast<size_t>(c)];
    *row++ = flag == environments::kTerminated ? 1.0F : 0.0F;
    if (flag == environments::kTerminated) {
      std::fill_n(row, seen, 0.0F);
    } else if (flag == environments::kTruncated) {
      std::copy_n(f.final_observations.data() + truncated++ * seen, seen, row);
    } else {
      std::copy_n(observed + f.instances * seen, seen, row);
    }
  }
  head_->taken = ReplayDigest(head_->taken, tid);
}

uint64_t ReplayStore::Digest() const {
  const auto used = std::as_bytes(std::span(rows(), static_cast<size_t>(size() * width_)));
  return Mix64(Mix64(head_->taken ^ static_cast<uint64_t>(head_->came)) + SaltedSum(used, 0));
}

std::vector<train::NamedBytes> ReplayStore::State() {
  const std::span<float> all(rows(), static_cast<size_t>(capacity_ * width_));
  return {{"replay.rows", std::as_writable_bytes(all)},
          {"replay.head", std::as_writable_bytes(std::span(head_.get(), 1))}};
}

int64_t ReplayStore::bytes() const { return capacity_ * width_ * 4; }

}  // namespace tidepool::policy
