#include "workers/device/device_pool.h"

#include <chrono>
#include <sstream>
#include <utility>

namespace tidepool::workers {

namespace {

TimePoint Now() { return TimePoint{std::chrono::steady_clock::now().time_since_epoch()}; }

}  // namespace

void DevicePool::Pass() {
  if (turn_) return;
  turn_ = order_.Next(Now());
  if (turn_) wakes_.at(*turn_)->NotifyAll();
}

void DevicePool::Await(TurnOrder::Ticket mine, const Waits& waits) {
  Condition wakes;
  wakes_[mine] = &wakes;
  Pass();
  // Whoever has the turn gives it back between two pieces of its work; one that does not is ended with its
  // process, by its controller.
  for (auto said = std::chrono::steady_clock::now(); turn_ != mine;) {
    wakes.WaitFor(mu_, std::chrono::seconds(1));
    if (const auto now = std::chrono::steady_clock::now(); now - said >= std::chrono::seconds(1)) {
      said = now;
      waits();
      Pass();  // one may have waited for too long by now
    }
  }
  wakes_.erase(mine);
}

DevicePool::Turn::Turn(DevicePool& pool, TurnKind kind, const Waits& waits) : pool_(pool) {
  const MutexLock lock(pool_.mu_);
  pool_.Await(pool_.order_.Ask(kind, Now()), waits);
}

DevicePool::Turn::~Turn() {
  const MutexLock lock(pool_.mu_);
  pool_.End();
  pool_.Pass();
}

void DevicePool::End() {
  ++ended_;
  turn_.reset();
}

void DevicePool::Yield(const Waits& waits) {
  const MutexLock lock(mu_);
  if (!order_.waits()) return;
  const TurnOrder::Ticket mine = *turn_;
  order_.AskAgain(mine, TurnKind::kTrains, Now());
  End();
  Await(mine, waits);
}

void DevicePool::SetGenerates(const void* session, bool generates) {
  const MutexLock lock(mu_);
  order_.SetGenerates(session, generates);
  Pass();
}

uint64_t DevicePool::turns() {
  const MutexLock lock(mu_);
  return ended_;
}

StatusOr<std::shared_ptr<SharedEngine>> DevicePool::Engine(const std::shared_ptr<const model::Weights>& base,
                                                           engine::EngineOptions options) {
  std::ostringstream key;
  key << base.get() << ' ' << options.block_tokens << ' ' << options.kv_cache_tokens << ' '
      << options.max_batched_tokens << ' ' << options.max_running << ' ' << options.graphs << ' '
      << options.record_routing;
  const MutexLock lock(bases_mu_);
  std::weak_ptr<SharedEngine>& known = engines_[key.str()];
  if (auto found = known.lock(); found != nullptr && found->failed().empty()) return found;
  // Room for all of them: with less, requests would wait that do not wait in a run alone.
  options.kv_cache_tokens *= runs_;
  options.max_batched_tokens *= runs_;
  options.max_running *= runs_;
  TP_ASSIGN_OR_RETURN(auto engine, engine::Engine::Create(*base, std::move(options)));
  auto made = std::make_shared<SharedEngine>(base, std::move(engine));
  known = made;
  return made;
}

StatusOr<std::shared_ptr<const model::Weights>> DevicePool::Base(uint64_t identity, const MakeBase& make) {
  const MutexLock lock(bases_mu_);
  std::weak_ptr<const model::Weights>& known = bases_[identity];
  if (auto found = known.lock()) return found;
  TP_ASSIGN_OR_RETURN(auto made, make());
  known = made;
  return made;
}

}  // namespace tidepool::workers
