#pragma once
// One worker process on loopback that this program drives itself, without a controller or a journal: its
// folder, its attachment, and the word that it may go on. It ends with the object. One thread owns it; only
// Wake is for any.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class DrivenWorker {
 public:
  enum class Kind : uint8_t { kDevice, kReward };
  struct Options {
    Kind kind = Kind::kDevice;
    std::vector<std::string> argv;  // the program and its first words; where it attaches to comes behind them
    JobConfig job;                  // that it is welcomed with
    std::function<bool()> stop;     // asked often; true: kAborted. May be empty
  };
  static StatusOr<std::unique_ptr<DrivenWorker>> Start(Options options);
  ~DrivenWorker();

  // Adds to `come` what it has said, its up::Offer first, heartbeats left out; waits so long for something at
  // most, and not for more than a moment. Tells it that it may go on, so it is to be called often.
  // kUnavailable, from then on: it died.
  Status Listen(std::chrono::nanoseconds patience);
  std::deque<FromWorkerBody> come;
  void Wake();  // ends a wait early
  // Answers its up::Offer: fills in what all workers are told. False: it is gone.
  bool Welcome(down::Welcome welcome);
  void Send(ToWorkerBody body);
  [[nodiscard]] std::string Log() const;  // the end of it, for a message

 private:
  DrivenWorker();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
