#pragma once
// Trajectories of samples on their way: the controller's decisions know only lengths and versions, this holds
// what was generated until it is in the payload file. From its ENQ on, a sample is read from there.
// Owned by the controller thread.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/sample/trajectory.h"
#include "core/storage/payload.h"
#include "core/storage/token_log.h"
#include "scheduler/commands.h"
#include "workers/data/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct StoredSample {
  sample::Trajectory tokens;
  // Episodes (workers/controller/turns.h): turns that are answered; the hash of what the environment has
  // said; how much of the response had been said before the newest answer, and its hash.
  int64_t turns = 0, sealed = 0;
  uint64_t history = 0, seal = 0;
  // Who worked on it last has its prompt and the first `with_worker` tokens of its response still.
  WorkerRef worker;
  int64_t with_worker = 0;
  storage::TokenPlace with_place;  // of the last of them, where they are in token logs
  GroupId gid;                     // that the worker knows it by
  // Its tokens are in token logs, and `tokens` has their outline: where the newest are; not valid: they are
  // here. Who has logged them, in which files of all workers, and the payload that it has made of them.
  storage::TokenPlace logged;
  WorkerRef logged_by;
  bool read_here = false;  // some worker could not read them
  std::set<int64_t> files;
  std::optional<storage::PayloadRef> stored;
  // The worker was asked for the tokens from here on: they come once, whatever comes before them.
  std::pair<SlotRef, int64_t> asked = {{}, -1};
};

class SampleStore {
 public:
  // Rows by ordinal (a group shares its row), evaluation rows by question.
  void PutRow(int64_t ordinal, bool eval, EncodedRow row);
  [[nodiscard]] const EncodedRow* FindRow(const SampleId& tid) const;

  // The record of this attempt; a new attempt begins empty.
  StoredSample& Get(const SampleId& tid, int32_t att);
  [[nodiscard]] const StoredSample* Find(const SampleId& tid) const;
  [[nodiscard]] StoredSample* Change(const SampleId& tid);
  void Drop(const SampleId& tid);
  // What graders say of a sample, by function; for people. Of several graders that were asked, one after the
  // other was lost, the one whose verdict is on record is heard.
  using Details = std::map<std::string, std::string>;
  void PutDetails(const SampleId& tid, const WorkerRef& grader, Details details);
  void OnGraded(const record::Graded& r);
  [[nodiscard]] Details DetailsOf(const SampleId& tid) const;
  // The sample is over. The row goes with the last of its samples.
  void Discard(const SampleId& tid);

  // The worker has its prompt and all of its tokens still.
  [[nodiscard]] bool IsWith(const WorkerRef& worker, const StoredSample& s) const {
    return s.worker == worker && s.with_worker == s.tokens.size();
  }
  // The message by which a worker starts this chunk, with the prompt and what has been generated so far, as
  // far as the worker has them not; `greedy` is the caller's. logs: the worker is to log its tokens, and to
  // read those of a logged sample that it has not; read: they are sent along.  requires its row here
  [[nodiscard]] down::StartChunk StartMessage(const scheduler::command::StartChunk& c, bool logs = false,
                                              const std::vector<sample::Segment>* read = nullptr);

  // A worker is told to forget what it has of the sample, or of all of the group.
  void Forgotten(const SampleId& tid);
  void Forgotten(GroupId gid, const WorkerRef& worker);

  // Of the group.  requires its row here
  [[nodiscard]] std::shared_ptr<const sample::Segment> PromptOf(const SampleId& tid) const {
    return RowOf(tid).prompt;
  }
  template <typename F>
  void ForEach(const F& f) const {
    for (const auto& [tid, sample] : samples_) f(sample);
  }
  // With the group's prompt.  requires its row and tokens here
  [[nodiscard]] sample::Trajectory Finished(const SampleId& tid) const;
  // Of a job without rollout: what the row teaches. Sample 1 of a pair is the rejected answer.
  [[nodiscard]] sample::Trajectory Taught(const SampleId& tid) const;  // requires its row here

 private:
  struct Row {
    EncodedRow row;
    std::shared_ptr<const sample::Segment> prompt;  // root of the trajectories of its group
  };
  [[nodiscard]] const Row& RowOf(const SampleId& tid) const;

  std::map<std::pair<bool, int64_t>, Row> rows_;
  std::map<SampleId, StoredSample> samples_;
  std::map<GroupId, std::set<SampleId>> given_;            // samples of samples_ that workers were given
  std::map<SampleId, std::map<WorkerRef, Details>> said_;  // with a verdict that is not on record yet
  std::map<SampleId, Details> details_;
};

}  // namespace tidepool::workers
