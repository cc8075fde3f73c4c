#pragma once
// What the sessions of one process share that serves several runs (pool_worker.h): the device, on which one
// of them computes at a time, the frozen models below their adapters, and engines over those. Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"
#include "workers/device/shared_engine.h"
#include "workers/device/turn_order.h"

namespace tidepool::workers {

class DevicePool {
 public:
  explicit DevicePool(int64_t runs) : runs_(runs) {}  // that it serves at a time

  // The right to compute, as TurnOrder says. A thread has one at most. `waits` is called each second until it
  // has it.
  using Waits = std::function<void()>;
  class Turn {
   public:
    Turn(DevicePool& pool, TurnKind kind, const Waits& waits);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    DevicePool& pool_;
  };
  // What is short goes first. For a thread that has the turn, between two pieces of training.
  void Yield(const Waits& waits);
  // As TurnOrder's; a session has nothing to make when it ends.
  void SetGenerates(const void* session, bool generates);
  // How many turns have ended. While this does not change, one session holds the device.
  [[nodiscard]] uint64_t turns();

  // An engine over `base` for runs whose options are the same apart from their seed and version, with a KV
  // cache for all runs of the pool.  requires the turn
  StatusOr<std::shared_ptr<SharedEngine>> Engine(const std::shared_ptr<const model::Weights>& base,
                                                 engine::EngineOptions options);

  // The model of this identity: the one that a session has, or what `make` gives.
  using MakeBase = std::function<StatusOr<std::shared_ptr<const model::Weights>>()>;
  StatusOr<std::shared_ptr<const model::Weights>> Base(uint64_t identity, const MakeBase& make);

 private:
  void Pass() TP_REQUIRES(mu_);  // the turn to who is next, if nobody has it
  void Await(TurnOrder::Ticket mine, const Waits& waits) TP_REQUIRES(mu_);
  void End() TP_REQUIRES(mu_);

  Mutex mu_;
  TurnOrder order_ TP_GUARDED_BY(mu_);
  std::optional<TurnOrder::Ticket> turn_ TP_GUARDED_BY(mu_);          // under way
  std::map<TurnOrder::Ticket, Condition*> wakes_ TP_GUARDED_BY(mu_);  // who waits
  uint64_t ended_ TP_GUARDED_BY(mu_) = 0;                             // turns
  const int64_t runs_;
  Mutex bases_mu_;
  std::map<uint64_t, std::weak_ptr<const model::Weights>> bases_ TP_GUARDED_BY(bases_mu_);
  std::map<std::string, std::weak_ptr<SharedEngine>> engines_ TP_GUARDED_BY(bases_mu_);
};

}  // namespace tidepool::workers
