#pragma once
// A rank of an engine that does what the first one tells it (ranks.h): the same rows through its part of the
// model, with its heads' keys and values in the leader's blocks. It knows no requests.
//
// Owned by one thread.

#include <memory>

#include "core/base/status.h"
#include "core/engine/engine.h"
#include "core/engine/ranks.h"
#include "core/model/memory_use.h"
#include "core/model/weights.h"

namespace tidepool::engine {

class Follower {
 public:
  // As Engine::Create, with the options of its leader. requires options.ranks, which do not lead
  static StatusOr<std::unique_ptr<Follower>> Create(const model::Weights& weights, EngineOptions options);
  ~Follower();

  // Does what a kForward or kHead says. Throws model::PeersFailed, and as Engine::Step().
  void Do(const Order& order);
  // The weights were changed in place.
  void WeightsChanged();

  int64_t ReleaseMemory();  // as Engine's
  Status AcquireMemory();
  [[nodiscard]] model::MemoryUse held() const;

 private:
  Follower();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::engine
