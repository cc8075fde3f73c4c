#pragma once
// What a device worker's heartbeat says about its device thread. Any thread.

#include <optional>
#include <string>

#include "core/base/thread_annotations.h"
#include "workers/device/pacer.h"
#include "workers/net/messages.h"
#include "workers/net/worker_pages.h"

namespace tidepool::workers {

class Pulse {
 public:
  void Begin(std::string op);                            // counts as progress
  void Engine(SlotId slot, const up::StepTokens& step);  // an engine step was done
  void SetPacer(const Pacer* pacer);                     // borrowed
  up::Heartbeat Take();
  void FreeBytes(std::optional<int64_t> of_device);
  [[nodiscard]] DeviceFacts device();

 private:
  Mutex mu_;
  DeviceFacts device_ TP_GUARDED_BY(mu_);
  up::Heartbeat beat_ TP_GUARDED_BY(mu_);
  const Pacer* pacer_ TP_GUARDED_BY(mu_) = nullptr;
};

}  // namespace tidepool::workers
