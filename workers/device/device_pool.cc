#include "workers/device/device_pool.h"

#include <chrono>
#include <sstream>
#include <utility>

namespace tidepool::workers {

void DevicePool::Take(const Waits& waits) {
  const MutexLock lock(mu_);
  const uint64_t mine = asked_++;
  // Whoever has the turn gives it back between two pieces of its work; one that does not is ended with its
  // process, by its controller.
  for (auto said = std::chrono::steady_clock::now(); served_ != mine;) {
    next_.WaitFor(mu_, std::chrono::seconds(1));
    if (const auto now = std::chrono::steady_clock::now(); now - said >= std::chrono::seconds(1)) {
      said = now;
      waits();
    }
  }
}

void DevicePool::Give() {
  const MutexLock lock(mu_);
  ++served_;
  next_.NotifyAll();
}

void DevicePool::Yield(const Waits& waits) {
  {
    const MutexLock lock(mu_);
    if (asked_ == served_ + 1) return;  // nobody waits
  }
  Give();
  Take(waits);
}

uint64_t DevicePool::turns() {
  const MutexLock lock(mu_);
  return served_;
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
