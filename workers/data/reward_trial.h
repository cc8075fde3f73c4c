#pragma once
// The C++ rewards of a job, each called once on a real row before anything starts: what a crash, a hang or a
// NaN would cost a run is said of the config instead. They may be plug-ins that nobody has called before, so
// they are called in a child (core/base/child_call.h).

#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/fields.h"
#include "core/base/status.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {

struct TriedReward {
  std::string reward;   // as the config names it
  std::string on;       // "train.jsonl:12, answered by its own answer"; by 0 where the row has none
  std::string verdict;  // "1", "no score, the row is at fault: ..."
  // Why it was not, in which case nothing is known of it: "no child process: fork: ..."; else empty.
  std::string not_tried = {};
};
TP_FIELDS(TriedReward, reward, on, verdict, not_tried)

// Nothing of jobs other than rl, of those with an environment, of rewards behind an endpoint and of models;
// nothing where no row can be used. kInvalidArgument: a reward cannot be made, is killed, ends its process,
// does not come back within its timeout_s, throws, or cannot grade; the message names key, plug-in, file and
// row.
StatusOr<std::vector<TriedReward>> TryRewards(const JobConfig& config, const RowSource& rows);

}  // namespace tidepool::workers
