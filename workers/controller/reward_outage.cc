#include "workers/controller/reward_outage.h"

#include <algorithm>

#include "core/observe/progress.h"
#include "scheduler/infra_budget.h"

namespace tidepool::workers {
namespace {

scheduler::InfraBudget BudgetOf(const JobConfig& config) {
  return {config.scheduler.infra_drop_stop, config.train.groups_per_step * SamplesPerRow(config)};
}

// Null: a worker with another config, which has no business here.
const RewardFunction* FunctionOf(const RewardConfig& config, const up::Unreachable& server) {
  const auto at = static_cast<size_t>(server.reward);  // -1 is beyond the end too
  return at < config.functions.size() ? &config.functions[at] : nullptr;
}

int64_t RoundedUp(int64_t n, int64_t by) { return (n + by - 1) / by; }

std::string InSeconds(double seconds) { return observe::DurationText(FromSeconds(seconds)); }

}  // namespace

std::vector<up::Unreachable> ServersOf(const RewardConfig& config, std::span<const up::Unreachable> servers) {
  std::vector<up::Unreachable> own;
  for (const up::Unreachable& server : servers) {
    if (FunctionOf(config, server) != nullptr) own.push_back(server);
  }
  return own;
}

std::string ServersText(const RewardConfig& config, std::span<const up::Unreachable> servers) {
  std::string text;
  for (const up::Unreachable& server : servers) {
    if (const RewardFunction* f = FunctionOf(config, server))
      text += (text.empty() ? "" : "; ") + f->name + " at " + f->endpoint + ": " + server.cause;
  }
  return text;
}

std::string UnreachableText(const JobConfig& config, std::span<const up::Unreachable> servers,
                            bool any_graded) {
  double timeout_s = 0;
  for (const up::Unreachable& server : servers) {
    if (const RewardFunction* f = FunctionOf(config.reward, server))
      timeout_s = std::max(timeout_s, f->timeout_s);
  }
  const scheduler::InfraBudget budget = BudgetOf(config);
  return "rewards wait for " + ServersText(config.reward, servers) + "; it is tried again for " +
         InSeconds(timeout_s) +
         " (timeout_s of its function in reward.functions). From then on a grading that fails is lost "
         "after " +
         std::to_string(config.reward.max_retries + 1) +
         " quick tries (reward.max_retries), and the run ends once " + std::to_string(budget.Most()) +
         " samples are lost (scheduler.infra_drop_stop)" +
         (any_graded ? "" : ", or all of the first " + std::to_string(budget.MostAlone()));
}

std::string FailingText(const JobConfig& config, const std::string& why, bool any_graded) {
  const scheduler::InfraBudget budget = BudgetOf(config);
  const int64_t most = any_graded ? budget.Most() : std::min(budget.Most(), budget.MostAlone());
  const std::string end = "a grading failed: " + why + ". If all fail from now on, the run ends once " +
                          std::to_string(most) + " samples are lost (scheduler.infra_drop_stop)";
  double timeout_s = 0;  // of one try: servers and models are asked one after the other
  for (const RewardFunction& f : config.reward.functions)
    timeout_s += f.endpoint.empty() && !f.by_model() ? 0 : f.timeout_s;
  if (timeout_s == 0) return end;  // functions of this build alone: a call takes no time worth telling
  const int64_t tries = config.reward.max_retries + 1;
  const int64_t calls = config.reward.workers * config.reward.concurrency;  // at a time
  // What failed before is asked for alone (reward.batch).
  const int64_t rounds = RoundedUp(most, calls * config.reward.batch) + (tries - 1) * RoundedUp(most, calls);
  return end + "; where each call takes its time-out, that is in " +
         InSeconds(static_cast<double>(rounds) * timeout_s) + " or more: " + std::to_string(tries) +
         " tries a sample (reward.max_retries) of " + InSeconds(timeout_s) +
         " (timeout_s in reward.functions), " + std::to_string(calls) +
         " calls at a time (reward.workers times reward.concurrency)";
}

}  // namespace tidepool::workers
