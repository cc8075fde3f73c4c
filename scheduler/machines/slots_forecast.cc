#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

// What the elastic policy asks, from what was measured in this run.
Forecast Slots::MakeForecast(const LedgerView& ledger) const {
  Forecast f;
  f.switch_s = pool_.switch_s();
  if (!facts_.policy.forecasts || ledger.need != TrainerNeed::kBatch) return f;
  double tokens = 0;  // of the batch that is to be trained
  for (const GroupKey& key : all_.batches.chosen()) {
    for (const Sample& q : state_.ledger().Find(key)->samples) {
      if (q.phase == SamplePhase::kReady)
        tokens += static_cast<double>(q.enq.prompt_len + q.enq.response_len);
    }
  }
  f.train_work_s = cost_.train_work(tokens);
  f.train_fixed_s = cost_.train_fixed(tokens);
  f.state_copy_s = cost_.state_copy();
  const double decoded = cost_.decoded_share();
  f.token_fixed_s = decoded * cost_.step_fixed();
  f.token_sample_s = decoded * cost_.step_sample();
  f.token_wait_s = decoded * cost_.wait();
  // The batch after this one: groups that are complete beyond it, then those that are furthest on, then new
  // ones.
  const LedgerRules& rules = state_.ledger().rules();
  const int64_t wanted = std::max<int64_t>(
      0, rules.groups_per_step - std::max<int64_t>(0, ledger.ready_groups - ledger.batch_groups));
  const double train = cost_.TrainSeconds(1, tokens), step = cost_.StepSeconds(1);
  const std::set<GroupKey> taken(all_.batches.chosen().begin(), all_.batches.chosen().end());
  std::vector<std::pair<int64_t, double>> running;  // longest left, all left: of a group
  for (const auto& [key, g] : state_.ledger().groups()) {
    if (g.phase != GroupPhase::kRunning || taken.contains(key)) continue;
    int64_t longest = 0;
    double all = 0;
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Request* q = all_.rollouts.requests().Find(g.Tid(k));
      if (q == nullptr) continue;
      const int64_t left = all_.rollouts.requests().LikelyLeft(*q);
      longest = std::max(longest, left);
      all += static_cast<double>(left);
      ++f.tail_samples;
      f.tail_kv_tokens += static_cast<double>(q->prompt_len + q->generated) +
                          std::min(static_cast<double>(left), step > 0 ? train / step : 0);
    }
    running.emplace_back(longest, all);
  }
  std::sort(running.begin(), running.end());
  const auto group = static_cast<double>(rules.group_size);
  const auto from_running = std::min<int64_t>(wanted, static_cast<int64_t>(running.size()));
  for (int64_t i = 0; i < from_running; ++i) {
    f.beside.tokens += running[static_cast<size_t>(i)].second;
    f.beside.longest = static_cast<double>(running[static_cast<size_t>(i)].first);
  }
  f.beside.samples = static_cast<double>(from_running) * group;
  // New groups: those that the bound on lag admits beside the step, and those that wait for its end.
  const LengthModel& lengths = all_.rollouts.requests().lengths();
  const auto fresh = [&](Work& work, int64_t count) {
    if (count <= 0) return;
    const double samples = static_cast<double>(count) * group,
                 prior = static_cast<double>(facts_.max_new) / 2;
    work.samples += samples;
    work.tokens += samples * lengths.ResidualLife(0, prior);
    work.longest = std::max(work.longest, lengths.Longest(samples, prior));
  };
  const int64_t admitted =
      std::clamp<int64_t>(rules.capacity() - state_.ledger().open(), 0, wanted - from_running);
  fresh(f.beside, admitted);
  fresh(f.after, wanted - from_running - admitted);
  f.tail_samples += static_cast<double>(admitted) * group;
  f.kv_tokens_per_slot = options_.rollout.kv_cache_tokens;
  return f;
}

}  // namespace tidepool::scheduler
