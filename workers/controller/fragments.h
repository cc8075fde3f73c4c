#pragma once
// The controller's side of fragments: in which states one begins, whether one that came is sound, what it is
// worth.
//
// Ordinals are dealt out to lanes: lane = ordinal mod lanes, as many as groups may be open at a time. A
// fragment begins where the fragment before it in its lane ended, which that one's payload says; so
// environments go on from step to step, and a run that was killed finds every start state in its journal.
// Where there is none (the first of a lane, or the one before was dropped, or is still played because steps
// overlap), the lane's instances begin new episodes. Evaluation plays instances that no lane has. Owned by
// the controller thread.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/policy/spec.h"
#include "core/sample/trajectory.h"

namespace tidepool::workers {

class Fragments {
 public:
  static StatusOr<std::unique_ptr<Fragments>> Create(const JobConfig& config);

  // Of every ENQ on record, of this life and earlier ones.
  void Remember(const record::Enq& enq);
  // The payload files of what Before may name.
  [[nodiscard]] std::set<int64_t> PayloadFiles() const;
  // The fragment at whose end this sample begins, to be read by the caller. Null: its instances begin new
  // episodes.
  [[nodiscard]] const record::Enq* Before(const SampleId& tid) const;
  // The start states for a sample, encoded. `before`: what Before named, or null.
  [[nodiscard]] StatusOr<std::string> Starts(const SampleId& tid, const sample::Trajectory* before) const;
  // kInvalidArgument: not a fragment of this job.
  [[nodiscard]] Status Check(const sample::Segment& record) const;

  // The verdict on a fragment: mean return of the episodes that ended in it (of one without any: what it has
  // earned an instance); and of an evaluation, first, whether its episode counts as solved.
  struct Verdict {
    double reward = 0;
    std::vector<std::pair<std::string, double>> rewards;
  };
  [[nodiscard]] StatusOr<Verdict> Judge(const SampleId& tid, const sample::Segment& record) const;

  [[nodiscard]] int64_t lanes() const { return lanes_; }

 private:
  explicit Fragments(const JobConfig& config) : config_(config) {}
  // New episodes, in this process.
  [[nodiscard]] StatusOr<std::unique_ptr<environments::VectorEnvironment>> Begin(
      std::span<const uint64_t> indices, int64_t episode) const;

  const JobConfig config_;
  environments::VectorOptions environment_;
  environments::VectorSpec rules_;
  policy::PolicySpec spec_;
  int64_t lanes_ = 1;
  std::map<int64_t, record::Enq> stored_;  // the newest of an ordinal, of the newest rounds of all lanes
};

}  // namespace tidepool::workers
