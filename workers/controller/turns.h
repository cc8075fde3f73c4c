#pragma once
// The controller's side of episodes: token ids are the record, what an environment reads and says is derived.
//
// The record of a sample is what the policy said (loss 1) and what the environment answered (loss 0), in
// turn; an answer is tokenised once and appended, nothing is ever tokenised again. Where the workers see the
// run's folder all of it is in their token logs (workers/side/logged_turns.h), and lengths and places are
// here. Two things are checked: every prompt begins with the record before it, and a replayed episode repeats
// its observations. If either fails, the sample is dropped as invalid data. Owned by the controller thread.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "workers/controller/sample_store.h"
#include "workers/data/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class Turns {
 public:
  using Count = std::function<void(const char* metric)>;  // one more
  // `tokens`: whoever plays the turns is sent the tokens of actions, not their texts alone.
  Turns(const RowSource& rows, SampleStore& samples, Count count, bool tokens = false)
      : rows_(rows), samples_(samples), count_(std::move(count)), tokens_(tokens) {}

  // The command for the worker; its actions come from `record` (null for a reset), or it names their place.
  [[nodiscard]] down::EnvStep Step(const scheduler::command::EnvStep& c, StoredSample* record);
  // A reply: tokenises what it says and keeps that until Append. A reply that breaks the record becomes
  // kData. Of one that was not asked of this worker nothing is kept: the scheduler refuses it.
  scheduler::event::EnvStepped Take(const WorkerRef& worker, up::EnvStepped reply);
  // What was kept becomes part of the record; of turn 0 the prompt.
  void Append(const scheduler::command::AppendObservation& c);
  // Before a chunk: the record still begins with what the policy had said. kDataLoss.
  [[nodiscard]] Status CheckPrefix(const StoredSample& s);
  void Forget(const SampleId& tid) {
    pending_.erase(tid);
    asked_.erase(tid);
  }

 private:
  struct Pending {
    int32_t att = 0;
    int64_t turn = 0;
    EncodedRow row;                                                          // of turn 0
    sample::Segment observation{.kind = sample::SegmentKind::kObservation};  // an outline where it is logged
    storage::TokenPlace logged;
    uint64_t history = 0, state = 0;
    double reward = 0;  // so far
  };
  struct Asked {
    WorkerRef worker;
    int32_t att = 0;
    int64_t turn = 0;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  [[nodiscard]] uint64_t HistoryOf(const SampleId& tid, const StoredSample& s) const;

  const RowSource& rows_;
  SampleStore& samples_;
  const Count count_;
  const bool tokens_;
  std::map<SampleId, Asked> asked_;  // of whom the newest turn, until it is appended
  std::map<SampleId, Pending> pending_;
};

}  // namespace tidepool::workers
