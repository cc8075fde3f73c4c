#pragma once
// Rewards that are servers of their own, asked over gRPC (proto/reward.proto) or as JSON over HTTP. The two
// carry the same fields under the same names.
//
// RewardServer makes one call. PatientServer makes it until somebody answers.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/tasks/reward.h"
#include "core/tasks/reward_endpoint.h"

namespace tidepool::workers {

using SteadyTime = std::chrono::steady_clock::time_point;
using RewardInputs = std::span<const tasks::RewardInput* const>;
using Verdicts = std::vector<tasks::Verdict>;  // one an input, in their order

// Thread-safe.
class RewardServer {
 public:
  virtual ~RewardServer() = default;
  // One call, over at `deadline` or soon after `stop`. kUnavailable: nobody answers there, or it says that it
  // will later; the message is the cause in a few words. Any other error: what answered is of no use.
  // requires inputs, not empty
  virtual StatusOr<Verdicts> Ask(RewardInputs inputs, SteadyTime deadline, const std::stop_token& stop) = 0;
  // Takes more than one input a call.
  [[nodiscard]] virtual bool takes_batches() const { return true; }
};

std::unique_ptr<RewardServer> ConnectGrpc(const RewardFunction& function, bool batches);
std::unique_ptr<RewardServer> ConnectHttp(const std::string& name, const tasks::RewardEndpoint& endpoint,
                                          bool batches);

// Since when a server cannot be reached: one outage for all who ask it. It is over when somebody answers, and
// where nobody asked for a while the next one that is not answered begins another. Thread-safe.
class Outage {
 public:
  // Nobody answered at `now` what was asked at `asked`; returns since when. What is asked of a server that
  // hangs takes long to fail, so it is the time of asking that counts.
  SteadyTime Begin(SteadyTime asked, SteadyTime now, const std::string& cause);
  // It goes on since `patience` or longer.
  [[nodiscard]] bool HasLasted(std::chrono::nanoseconds patience, SteadyTime now) const;
  // Somebody answered; returns since when nobody had, if so.
  std::optional<SteadyTime> End();
  [[nodiscard]] std::string cause() const;  // empty: there is none

 private:
  mutable Mutex mu_;
  std::optional<SteadyTime> since_ TP_GUARDED_BY(mu_);
  SteadyTime last_ TP_GUARDED_BY(mu_);  // that nobody answered; meaningful with since_
  std::string cause_ TP_GUARDED_BY(mu_);
};

// A server with patience. One that cannot be reached is asked again after growing waits, until it has been
// unreachable for timeout_s; from then on a call is tried once, after a short wait, so that a server that
// stays away ends the run soon, and one that comes back is used again. A call of several samples that it
// answers with an error is made again in halves, so that only those fail that it cannot take. Thread-safe.
class PatientServer {
 public:
  // kInvalidArgument: the endpoint is none. `batches`: reward.batch is above 1.
  static StatusOr<std::unique_ptr<PatientServer>> Create(const RewardFunction& function, bool batches);
  // Verdicts of all inputs; kInfra where the call failed. Waits no longer than timeout_s.
  Verdicts Ask(RewardInputs inputs, const std::stop_token& stop, int64_t& retries);
  // Why it cannot be reached: "Connection refused". Empty: it can.
  [[nodiscard]] std::string outage() const { return outage_.cause(); }
  [[nodiscard]] bool takes_batches() const { return server_->takes_batches(); }

 private:
  PatientServer(const RewardFunction& function, std::unique_ptr<RewardServer> server);
  Verdicts AskUntil(SteadyTime deadline, RewardInputs inputs, const std::stop_token& stop, int64_t& retries);
  const std::string name_;  // "mine at 127.0.0.1:7001"
  const std::chrono::nanoseconds timeout_;
  const std::unique_ptr<RewardServer> server_;
  Outage outage_;
};

}  // namespace tidepool::workers
