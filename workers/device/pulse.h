#pragma once
// What a device worker's heartbeat says about its device thread. Any thread.

#include <mutex>
#include <string>

#include "workers/device/pacer.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class Pulse {
 public:
  void Begin(std::string op);               // counts as progress
  void Engine(const up::StepTokens& step);  // an engine step was done
  void SetPacer(const Pacer* pacer);        // borrowed
  up::Heartbeat Take();

 private:
  std::mutex mu_;
  up::Heartbeat beat_;
  const Pacer* pacer_ = nullptr;
};

}  // namespace tidepool::workers
