#pragma once
// What a finished run tells the simulator about the job: the answer lengths it had and how long things took
// that the cost model knows nothing of. Read from the journal, so any run will do.

#include <cstdint>
#include <map>
#include <string>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::workers {

struct MeasuredRun {
  std::map<SampleId, int64_t> lengths;  // response tokens by sample, of the first issue of each prompt
  std::map<WorkerId, double> join_s;    // of the first life of each worker
  double prompt_tokens = 0;             // mean
  double reward_s = 0;                  // median, end of a sample to its grade
  double release_s = 0, grant_s = 0;  // medians, of a slot that changes hands; the step it drains not counted
  double group_s = 0;    // median, of steps on other slots than the step before: from their move to its begin
  double publish_s = 0;  // median, commit of a step to its weights being published
  int64_t samples = 0, moves = 0;
};
// kNotFound, kDataLoss; kFailedPrecondition if no sample was finished in it.
StatusOr<MeasuredRun> MeasureRun(const std::string& run);

}  // namespace tidepool::workers
