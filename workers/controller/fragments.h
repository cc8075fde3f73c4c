#pragma once
// The controller's side of fragments: in which states one begins. What one is worth says its environment
// worker (workers/data/fragment_judge.h).
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
#include "core/sample/trajectory.h"
#include "workers/data/fragment_judge.h"

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
  [[nodiscard]] const FragmentJudge& judge() const { return judge_; }
  [[nodiscard]] int64_t lanes() const { return lanes_; }

 private:
  Fragments(const JobConfig& config, FragmentJudge judge) : config_(config), judge_(std::move(judge)) {}
  // New episodes, in this process.
  [[nodiscard]] StatusOr<std::vector<environments::InstanceState>> Begin(std::span<const uint64_t> indices,
                                                                         int64_t episode) const;

  const JobConfig config_;
  const FragmentJudge judge_;
  environments::VectorOptions environment_;
  int64_t lanes_ = 1;
  std::map<int64_t, record::Enq> stored_;  // the newest of an ordinal, of the newest rounds of all lanes
};

}  // namespace tidepool::workers
