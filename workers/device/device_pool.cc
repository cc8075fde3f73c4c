#include "workers/device/device_pool.h"

#include <chrono>

namespace tidepool::workers {

void DevicePool::Take() {
  const MutexLock lock(mu_);
  const uint64_t mine = asked_++;
  // Whoever has the turn gives it back between two pieces of its work; one that does not is ended with its
  // process, by its controller.
  while (served_ != mine) next_.WaitFor(mu_, std::chrono::seconds(1));
}

void DevicePool::Give() {
  const MutexLock lock(mu_);
  ++served_;
  next_.NotifyAll();
}

void DevicePool::Yield() {
  {
    const MutexLock lock(mu_);
    if (asked_ == served_ + 1) return;  // nobody waits
  }
  Give();
  Take();
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
