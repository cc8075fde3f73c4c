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
  std::unique_ptr<Fragments> f(new Fragments(config));
  f->environment_ = policy::EnvironmentOfJob(config);
  TP_ASSIGN_OR_RETURN(f->rules_, environments::FindVectorEnvironment(f->environment_));
  TP_ASSIGN_OR_RETURN(f->spec_, policy::SpecOfJob(config));
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

StatusOr<std::unique_ptr<environments::VectorEnvironment>> Fragments::Begin(std::span<const uint64_t> indices,
                                                                            int64_t episode) const {
  const LimitedCall call({.what = environments::LabelOf(rules_),
                          .on = "the start of its instances",
                          .limit_s = config_.environment()->step_timeout_s,
                          .key = "environment.step_timeout_s"});
  return environments::VectorEnvironment::Create(environment_, indices, episode);
}

StatusOr<std::string> Fragments::Starts(const SampleId& tid, const sample::Trajectory* before) const {
  if (tid.is_eval()) {
    const std::vector<uint64_t> index = {environments::kEvaluationInstances +
                                         static_cast<uint64_t>(tid.ordinal)};
    TP_ASSIGN_OR_RETURN(const auto set, Begin(index, 0));
    return policy::EncodeStates(set->states());
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
  TP_ASSIGN_OR_RETURN(const auto set,
                      Begin(indices, tid.ordinal < lanes_ ? 0 : tid.ordinal * kEpisodesOfOrdinal));
  return policy::EncodeStates(set->states());
}

Status Fragments::Check(const sample::Segment& record) const {
  if (record.kind != sample::SegmentKind::kFragment) return InvalidArgument("fragment: these are tokens");
  const auto fragment = policy::DecodeFragment(record.fragment);
  if (!fragment.ok()) return InvalidArgument(fragment.status().message());
  int64_t counted = 0;
  for (const auto& [version, count] : record.versions) counted += version.valid() ? count : 0;
  if (record.fragment_steps < 1 || record.fragment_steps > fragment->cells() ||
      counted != record.fragment_steps) {
    return InvalidArgument("fragment: " + std::to_string(record.fragment_steps) +
                           " steps are reported, its versions count " + std::to_string(counted) +
                           ", and it has " + std::to_string(fragment->cells()));
  }
  return policy::CheckFragment(*fragment, spec_);
}

StatusOr<Fragments::Verdict> Fragments::Judge(const SampleId& tid, const sample::Segment& record) const {
  TP_ASSIGN_OR_RETURN(const policy::Fragment f, policy::DecodeFragment(record.fragment));
  Verdict v;
  if (!f.scores.empty()) {
    for (const double s : f.scores) v.reward += s / static_cast<double>(f.scores.size());
  } else {
    for (const float r : f.rewards) v.reward += static_cast<double>(r) / static_cast<double>(f.instances);
  }
  if (tid.is_eval()) v.rewards.emplace_back("solved", v.reward >= rules_.solved_return ? 1.0 : 0.0);
  v.rewards.emplace_back("return", v.reward);
  return v;
}

}  // namespace tidepool::workers
