#include "workers/controller/fragments.h"

#include <algorithm>

#include "core/base/limited_call.h"
#include "core/policy/fragment.h"
#include "scheduler/ledger.h"

namespace tidepool::workers {
namespace {

// Episodes of a lane that begins anew are counted from its ordinal on, beyond all that it has played.
constexpr int64_t kEpisodesOfOrdinal = int64_t{1} << 32;

}  // namespace

StatusOr<std::unique_ptr<Fragments>> Fragments::Create(const JobConfig& config) {
  TP_ASSIGN_OR_RETURN(FragmentJudge judge, FragmentJudge::Create(config));
  std::unique_ptr<Fragments> f(new Fragments(config, std::move(judge)));
  f->environment_ = policy::EnvironmentOfJob(config);
  f->lanes_ = scheduler::LedgerRules{.groups_per_step = config.train.groups_per_step,
                                     .max_lag_versions = config.scheduler.max_lag_versions,
                                     .oversample = config.scheduler.oversample}
                  .capacity();
  return f;
}

void Fragments::Remember(const record::Enq& enq) {
  stored_[enq.tid.ordinal] = enq;
  // A start is looked for one round of the lanes before. What is open spans about a round; whoever is further
  // behind than kRounds (issued again after it had become stale) begins new episodes.
  constexpr int64_t kRounds = 4;
  stored_.erase(stored_.begin(), stored_.lower_bound(stored_.rbegin()->first - kRounds * lanes_));
}

std::set<int64_t> Fragments::PayloadFiles() const {
  std::set<int64_t> files;
  for (const auto& [ordinal, enq] : stored_) files.insert(enq.payload_file);
  return files;
}

const record::Enq* Fragments::Before(const SampleId& tid) const {
  const auto before = tid.is_eval() ? stored_.end() : stored_.find(tid.ordinal - lanes_);
  return before == stored_.end() ? nullptr : &before->second;
}

StatusOr<std::vector<environments::InstanceState>> Fragments::Begin(std::span<const uint64_t> indices,
                                                                    int64_t episode) const {
  const LimitedCall call({.what = environments::LabelOf(judge_.rules()),
                          .on = "the start of its instances",
                          .limit_s = config_.environment()->step_timeout_s,
                          .key = "environment.step_timeout_s"});
  return environments::StartStates(environment_, indices, episode);
}

StatusOr<std::string> Fragments::Starts(const SampleId& tid, const sample::Trajectory* before) const {
  if (tid.is_eval()) {
    const std::vector<uint64_t> index = {environments::kEvaluationInstances +
                                         static_cast<uint64_t>(tid.ordinal)};
    TP_ASSIGN_OR_RETURN(const auto states, Begin(index, 0));
    return policy::EncodeStates(states);
  }
  if (before != nullptr) {
    const sample::Segment* played = before->Fragment();
    if (played == nullptr) return DataLoss(ToString(before->tid) + " is stored, but is no fragment");
    TP_ASSIGN_OR_RETURN(const policy::Fragment fragment, policy::DecodeFragment(played->fragment));
    return policy::EncodeStates(fragment.ends);
  }
  const int64_t lane = tid.ordinal % lanes_;
  std::vector<uint64_t> indices;
  for (int64_t i = 0; i < config_.environment()->instances; ++i)
    indices.push_back(static_cast<uint64_t>(lane * config_.environment()->instances + i));
  TP_ASSIGN_OR_RETURN(const auto states,
                      Begin(indices, tid.ordinal < lanes_ ? 0 : tid.ordinal * kEpisodesOfOrdinal));
  return policy::EncodeStates(states);
}

}  // namespace tidepool::workers
