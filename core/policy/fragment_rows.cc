#include "core/policy/fragment_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/train/bad_rows.h"

namespace tidepool::policy {

StatusOr<double> Largest(comm::Collective* group, double mine, const char* what) {
  if (group == nullptr) return mine;
  TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, group->AllGather(std::bit_cast<uint64_t>(mine), what));
  for (const uint64_t bits : all) mine = std::max(mine, std::bit_cast<double>(bits));
  return mine;
}

Status AddRanks(comm::Collective* group, std::vector<double>& sums, const char* what) {
  return group == nullptr ? OkStatus() : group->AllReduceSum(std::span<double>(sums), what);
}

Status CheckRows(std::span<const FragmentRow> rows, StepNumber step, const PolicySpec& spec,
                 comm::Collective* group, std::vector<BadRow>* bad) {
  if (rows.empty())
    return InvalidArgument("policy trainer: step " + std::to_string(step.value) + " has no fragments");
  std::vector<BadRow> found = bad != nullptr ? std::move(*bad) : std::vector<BadRow>();
  Status whole;
  for (const FragmentRow& row : rows) {
    if (!row.mine) {
      if (group == nullptr)
        whole = InvalidArgument("policy trainer: rows are elsewhere, and there is no group of ranks");
      continue;
    }
    if (const Status sound = CheckFragment(row.fragment, spec); !sound.ok())
      found.push_back({row.tid, sound.message()});
  }
  const Status usable = train::AgreeOnRows(group, whole, found, "policy trainer");
  if (bad != nullptr) *bad = std::move(found);
  TP_RETURN_IF_ERROR(usable);
  return OkStatus();
}

Status ScoreMetrics(std::span<const FragmentRow> rows, comm::Collective* group,
                    std::map<std::string, double>& metrics) {
  double high = -INFINITY, low = INFINITY;
  enum { kScore, kEpisodes, kCells, kTruncated, kReward };
  std::vector<double> sums(kReward + 1, 0.0);
  for (const FragmentRow& row : rows) {
    for (const double s : row.fragment.scores) {
      sums[kScore] += s;
      high = std::max(high, s);
      low = std::min(low, s);
      ++sums[kEpisodes];
    }
    for (const float r : row.fragment.rewards) sums[kReward] += r;
    sums[kCells] += static_cast<double>(row.fragment.cells());
    sums[kTruncated] += static_cast<double>(std::ranges::count(row.fragment.flags, environments::kTruncated));
  }
  TP_RETURN_IF_ERROR(AddRanks(group, sums, "scores"));
  TP_ASSIGN_OR_RETURN(high, Largest(group, high, "highest_score"));
  TP_ASSIGN_OR_RETURN(low, Largest(group, -low, "lowest_score"));
  if (sums[kEpisodes] > 0) {
    metrics["critic/score/mean"] = sums[kScore] / sums[kEpisodes];
    metrics["critic/score/max"] = high;
    metrics["critic/score/min"] = -low;
    metrics["episode/length/mean"] = sums[kCells] / sums[kEpisodes];
    metrics["episode/truncated_ratio"] = sums[kTruncated] / sums[kEpisodes];
  }
  metrics["episode/count"] = sums[kEpisodes];
  metrics["critic/rewards/mean"] = sums[kReward] / std::max(1.0, sums[kCells]);
  return OkStatus();
}

}  // namespace tidepool::policy
