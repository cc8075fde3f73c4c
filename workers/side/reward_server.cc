#include "workers/side/reward_server.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/observe/log.h"
#include "workers/net/bounded_text.h"

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A server that is started again is back within one to some ten of these; a crowd of callers at the longest
// is reward.concurrency calls a second and worker.
constexpr milliseconds kFirstWait{50};
constexpr milliseconds kLongestWait{1000};
// Whoever waits asks again within kLongestWait. After a gap of more, nobody knows what was in it.
constexpr milliseconds kGap = 2 * kLongestWait;
// Before the one try that a call has once timeout_s is over: a server that is back after a second costs a few
// samples then and not all that are there, and one that stays away still ends the run soon.
constexpr milliseconds kLateWait{100};

std::string InSeconds(std::chrono::nanoseconds d) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(d).count());
  return text;
}

// False: stopped meanwhile.
bool WaitFor(std::chrono::nanoseconds d, const std::stop_token& stop) {
  Mutex mu;
  Condition wake;
  const MutexLock lock(mu);
  wake.WaitFor(mu, stop, d);
  return !stop.stop_requested();
}

}  // namespace

SteadyTime Outage::Begin(SteadyTime asked, SteadyTime now, const std::string& cause) {
  const MutexLock lock(mu_);
  cause_ = cause;
  if (!since_ || asked - last_ > kGap) since_ = asked;
  last_ = now;
  return *since_;
}

bool Outage::HasLasted(std::chrono::nanoseconds patience, SteadyTime now) const {
  const MutexLock lock(mu_);
  return since_ && now - last_ <= kGap && now - *since_ >= patience;
}

std::optional<SteadyTime> Outage::End() {
  const MutexLock lock(mu_);
  cause_.clear();
  return std::exchange(since_, std::nullopt);
}

std::string Outage::cause() const {
  const MutexLock lock(mu_);
  return cause_;
}

StatusOr<std::unique_ptr<PatientServer>> PatientServer::Create(const RewardFunction& function, bool batches) {
  TP_ASSIGN_OR_RETURN(const tasks::RewardEndpoint endpoint, tasks::ParseRewardEndpoint(function.endpoint));
  return std::unique_ptr<PatientServer>(
      new PatientServer(function, endpoint.http ? ConnectHttp(function.name, endpoint, batches)
                                                : ConnectGrpc(function, batches)));
}

PatientServer::PatientServer(const RewardFunction& function, std::unique_ptr<RewardServer> server)
    : name_(function.name + " at " + function.endpoint),
      timeout_(std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(function.timeout_s))),
      server_(std::move(server)) {}

Verdicts PatientServer::Ask(RewardInputs inputs, const std::stop_token& stop, int64_t& retries) {
  return AskUntil(steady_clock::now() + timeout_, inputs, stop, retries);
}

Verdicts PatientServer::AskUntil(SteadyTime deadline, RewardInputs inputs, const std::stop_token& stop,
                                 int64_t& retries) {
  const auto failed = [&](const std::string& why) {
    return Verdicts(inputs.size(), {tasks::Verdict::Outcome::kInfra, 0, name_ + ": " + why});
  };
  milliseconds wait = kFirstWait;
  if (outage_.HasLasted(timeout_, steady_clock::now())) {
    WaitFor(std::min<std::chrono::nanoseconds>(kLateWait, timeout_ / 2), stop);
  }
  for (int64_t tries = 1;; ++tries) {
    const SteadyTime asked = steady_clock::now();
    StatusOr<Verdicts> answer = server_->Ask(inputs, deadline, stop);
    const SteadyTime now = steady_clock::now();
    if (answer.status().code() != StatusCode::kUnavailable) {
      // Whoever is too slow may as well be out of reach, and a call that was called off tells nothing.
      const bool answered = answer.status().code() != StatusCode::kDeadlineExceeded && !stop.stop_requested();
      if (const auto since = answered ? outage_.End() : std::nullopt) {
        observe::Log(observe::LogLevel::kWarn, "reward_server_is_back",
                     {{"server", name_}, {"after", InSeconds(now - *since)}});
      }
      if (answer.ok()) return *std::move(answer);
      if (answer.status().code() == StatusCode::kDeadlineExceeded) {
        return failed("no answer within " + InSeconds(timeout_) +
                      "; if it needs longer, raise timeout_s of this function in reward.functions");
      }
      if (inputs.size() > 1 && !stop.stop_requested()) {
        // It may be one of them that is refused, or all together are too long.
        const size_t half = inputs.size() / 2;
        Verdicts verdicts = AskUntil(deadline, inputs.first(half), stop, retries);
        Verdicts others = AskUntil(deadline, inputs.subspan(half), stop, retries);
        std::ranges::move(others, std::back_inserter(verdicts));
        return verdicts;
      }
      return failed(Bounded(answer.status().message()));
    }
    const std::string cause = Bounded(answer.status().message());
    const SteadyTime since = outage_.Begin(asked, now, cause);
    if (since == asked)
      observe::Log(observe::LogLevel::kWarn, "reward_server_unreachable",
                   {{"server", name_}, {"why", cause}});
    if (now + wait >= std::min(deadline, since + timeout_) || !WaitFor(wait, stop)) {
      return failed("unreachable for " + InSeconds(steady_clock::now() - since) + " (" +
                    std::to_string(tries) + (tries == 1 ? " try" : " tries") + " of this grading): " + cause);
    }
    wait = std::min(2 * wait, kLongestWait);
    ++retries;
  }
}

}  // namespace tidepool::workers
