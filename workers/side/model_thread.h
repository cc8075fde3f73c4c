#pragma once
// The thread of a reward that is a model (model_reward.h), and what its model does there.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/base/thread_annotations.h"
#include "workers/net/mailbox.h"
#include "workers/side/model_reward.h"

namespace tidepool::workers {

// What one caller asked together. Thread-safe.
class AskedTogether {
 public:
  explicit AskedTogether(size_t count) : verdicts_(count), missing_(count) {}
  void Tell(size_t i, tasks::Verdict verdict);
  // Nobody waits for it any more.
  void Forget() { wanted_.store(false); }
  [[nodiscard]] bool wanted() const { return wanted_.load(); }
  // All of them, if they are there within `patience`.
  std::optional<Verdicts> Wait(std::chrono::milliseconds patience);

 private:
  std::atomic<bool> wanted_ = true;
  Mutex mu_;
  Condition done_;
  Verdicts verdicts_ TP_GUARDED_BY(mu_);
  size_t missing_ TP_GUARDED_BY(mu_);
};

struct AskedSample {
  tasks::RewardInput input;
  std::shared_ptr<AskedTogether> of;
  size_t place = 0;
  void Tell(tasks::Verdict verdict) const { of->Tell(place, std::move(verdict)); }
};

// A model that grades. One thread calls everything. Nothing but the destructor may be called after an
// exception.
class GradingModel {
 public:
  virtual ~GradingModel() = default;
  virtual Status Load() = 0;
  // Each is told its verdict, here or in a later Step.
  virtual void Begin(std::vector<AskedSample> asked) = 0;
  // Computes for a while; false: there is nothing more to do. An error: it is of no use any more.
  virtual StatusOr<bool> Step() = 0;
};

class ModelThread : public ModelReward {
 public:
  ModelThread(const RewardFunction& function, const RewardConfig& reward, CallWatch& watch,
              std::unique_ptr<GradingModel> model);
  ~ModelThread() override;
  Verdicts Ask(RewardInputs inputs, const std::stop_token& stop) override;
  [[nodiscard]] std::optional<std::string> failure() const override;

 private:
  void Run(const std::stop_token& stop);
  Status Work(const std::stop_token& stop);
  // Until it is loaded or failed. False: neither in time.
  bool AwaitLoaded(const std::stop_token& stop);

  const RewardFunction function_;
  const int threads_;
  const double load_timeout_s_;
  CallWatch& watch_;
  std::unique_ptr<GradingModel> model_;
  Mailbox<AskedSample> inbox_;
  mutable Mutex mu_;
  Condition changed_;
  bool loaded_ TP_GUARDED_BY(mu_) = false;
  std::optional<std::string> failure_ TP_GUARDED_BY(mu_);
  std::jthread thread_;  // waits: for a load or one step, which `watch` limits
};

}  // namespace tidepool::workers
