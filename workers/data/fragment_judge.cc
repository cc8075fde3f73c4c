#include "workers/data/fragment_judge.h"

#include <string>

#include "core/policy/fragment.h"

namespace tidepool::workers {

StatusOr<FragmentJudge> FragmentJudge::Create(const JobConfig& config) {
  FragmentJudge judge;
  TP_ASSIGN_OR_RETURN(judge.rules_, environments::FindVectorEnvironment(policy::EnvironmentOfJob(config)));
  TP_ASSIGN_OR_RETURN(judge.spec_, policy::SpecOfJob(config));
  return judge;
}

Status FragmentJudge::Check(const sample::Segment& record) const {
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

up::Graded FragmentJudge::Grade(const SampleId& tid, int32_t att, const sample::Trajectory& recorded) const {
  up::Graded graded;
  graded.tid = tid;
  graded.att = att;
  const auto judge = [&]() -> Status {
    const sample::Segment* played = recorded.Fragment();
    if (played == nullptr) return InvalidArgument("it is no fragment");
    TP_RETURN_IF_ERROR(Check(*played));
    TP_ASSIGN_OR_RETURN(const policy::Fragment f, policy::DecodeFragment(played->fragment));
    double& reward = graded.reward;
    if (!f.scores.empty()) {
      for (const double s : f.scores) reward += s / static_cast<double>(f.scores.size());
    } else {
      for (const float r : f.rewards) reward += static_cast<double>(r) / static_cast<double>(f.instances);
    }
    if (tid.is_eval()) graded.rewards.emplace_back("solved", reward >= rules_.solved_return ? 1.0 : 0.0);
    graded.rewards.emplace_back("return", reward);
    return OkStatus();
  };
  if (const Status judged = judge(); !judged.ok()) {
    graded.outcome = GradeOutcome::kData;
    graded.reward = 0;
    graded.why = judged.message();
  }
  return graded;
}

}  // namespace tidepool::workers
