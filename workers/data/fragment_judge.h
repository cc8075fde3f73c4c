#pragma once
// What a fragment of a control task (core/policy/fragment.h) is worth, and whether it is one: by the
// environment worker that reads it, or by the controller for one that does not. Thread-compatible.

#include <cstdint>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/policy/spec.h"
#include "core/sample/trajectory.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class FragmentJudge {
 public:
  // Errors of the job's environment.
  static StatusOr<FragmentJudge> Create(const JobConfig& config);

  // kInvalidArgument: not a fragment of this job.
  [[nodiscard]] Status Check(const sample::Segment& record) const;
  // The verdict on a fragment: mean return of the episodes that ended in it (of one without any: what it has
  // earned an instance); and of an evaluation, first, whether its episode counts as solved. What Check
  // refuses is kData.
  [[nodiscard]] up::Graded Grade(const SampleId& tid, int32_t att, const sample::Trajectory& recorded) const;

  [[nodiscard]] const environments::VectorSpec& rules() const { return rules_; }

 private:
  FragmentJudge() = default;

  environments::VectorSpec rules_;
  policy::PolicySpec spec_;
};

}  // namespace tidepool::workers
