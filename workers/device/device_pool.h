#pragma once
// What the sessions of one process share that serves several runs (pool_worker.h): the device, on which one
// of them computes at a time, the frozen models below their adapters, and engines over those. Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"
#include "workers/device/shared_engine.h"

namespace tidepool::workers {

class DevicePool {
 public:
  explicit DevicePool(int64_t runs) : runs_(runs) {}  // that it serves at a time

  // The right to compute, in the order in which it was asked for. A thread has one at most. `waits` is called
  // each second until it has it.
  using Waits = std::function<void()>;
  class Turn {
   public:
    Turn(DevicePool& pool, const Waits& waits) : pool_(pool) { pool_.Take(waits); }
    ~Turn() { pool_.Give(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    DevicePool& pool_;
  };
  // Whoever waits goes first. For a thread that has the turn, between two pieces of a long computation.
  void Yield(const Waits& waits);
  // How many turns have ended: who waits for one that does not come sees it stand still.
  [[nodiscard]] uint64_t turns();

  // An engine over `base` for runs whose options are the same apart from their seed and version, with a KV
  // cache for all runs of the pool.  requires the turn
  StatusOr<std::shared_ptr<SharedEngine>> Engine(const std::shared_ptr<const model::Weights>& base,
                                                 engine::EngineOptions options);

  // The model of this identity: the one that a session has, or what `make` gives.
  using MakeBase = std::function<StatusOr<std::shared_ptr<const model::Weights>>()>;
  StatusOr<std::shared_ptr<const model::Weights>> Base(uint64_t identity, const MakeBase& make);

 private:
  void Take(const Waits& waits);
  void Give();

  Mutex mu_;
  Condition next_;
  uint64_t asked_ TP_GUARDED_BY(mu_) = 0;   // tickets given out
  uint64_t served_ TP_GUARDED_BY(mu_) = 0;  // the ticket whose turn it is
  const int64_t runs_;
  Mutex bases_mu_;
  std::map<uint64_t, std::weak_ptr<const model::Weights>> bases_ TP_GUARDED_BY(bases_mu_);
  std::map<std::string, std::weak_ptr<SharedEngine>> engines_ TP_GUARDED_BY(bases_mu_);
};

}  // namespace tidepool::workers
