#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

double Slots::ChosenTokens() const {
  double tokens = 0;
  for (const GroupKey& key : all_.batches.chosen()) {
    for (const Sample& q : state_.ledger().Find(key)->samples) {
      if (q.phase == SamplePhase::kReady)
        tokens += static_cast<double>(q.enq.prompt_len + q.enq.response_len);
    }
  }
  return tokens;
}

// What the elastic placement asks, from what was measured in this run.
Forecast Slots::MakeForecast(const LedgerView& ledger) const {
  Forecast f;
  f.switch_s = pool_.switch_s();
  if (!facts_.placement.forecasts || ledger.need != TrainerNeed::kBatch) return f;
  const double tokens = ChosenTokens();
  f.train_work_s = cost_.train_work(tokens);
  f.train_fixed_s = cost_.train_fixed(tokens);
  f.state_copy_s = cost_.state_copy();
  const double decoded = cost_.decoded_share();
  f.token_fixed_s = decoded * cost_.step_fixed();
  f.token_sample_s = decoded * cost_.step_sample();
  f.token_wait_s = decoded * cost_.wait();
  f.kv_tokens_per_slot = options_.rollout.kv_cache_tokens;
  const double train = cost_.TrainSeconds(1, tokens), step = cost_.StepSeconds(1);
  const std::vector<GroupLeft> running = RunningGroups(f, step > 0 ? train / step : 0);
  ForecastNextBatch(f, ledger, running);
  return f;
}

// Groups that still generate and are not in the chosen batch; the least first. Their samples are the tail
// that goes on beside the step, each at most `tokens_beside` tokens long by its end.
std::vector<Slots::GroupLeft> Slots::RunningGroups(Forecast& f, double tokens_beside) const {
  const std::set<GroupKey> taken(all_.batches.chosen().begin(), all_.batches.chosen().end());
  const Dispatcher& requests = all_.rollouts.requests();
  std::vector<GroupLeft> running;
  for (const auto& [key, g] : state_.ledger().groups()) {
    if (g.phase != GroupPhase::kRunning || taken.contains(key)) continue;
    GroupLeft& group = running.emplace_back();
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Request* q = requests.Find(g.Tid(k));
      if (q == nullptr) continue;
      const int64_t left = requests.LikelyLeft(*q);
      group.longest = std::max(group.longest, left);
      group.tokens += static_cast<double>(left);
      ++f.tail_samples;
      f.tail_kv_tokens += static_cast<double>(q->prompt_len + q->generated) +
                          std::min(static_cast<double>(left), tokens_beside);
    }
  }
  std::ranges::sort(running);
  return running;
}

// The batch after this one: groups that are complete beyond it, then those that are furthest on, then new
// ones: those that the bound on lag admits beside the step, and those that wait for its end.
void Slots::ForecastNextBatch(Forecast& f, const LedgerView& ledger,
                              const std::vector<GroupLeft>& running) const {
  const LedgerRules& rules = state_.ledger().rules();
  const auto group = static_cast<double>(rules.group_size);
  const int64_t wanted = std::max<int64_t>(
      0, rules.groups_per_step - std::max<int64_t>(0, ledger.ready_groups - ledger.batch_groups));
  const auto from_running = std::min<int64_t>(wanted, static_cast<int64_t>(running.size()));
  for (const GroupLeft& g : std::span(running).first(static_cast<size_t>(from_running))) {
    f.beside.tokens += g.tokens;
    f.beside.longest = static_cast<double>(g.longest);
  }
  f.beside.samples = static_cast<double>(from_running) * group;
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
}

}  // namespace tidepool::scheduler
