#pragma once
// Small types for the ids of a run, so that they cannot be swapped. None is ever re-used in a run.

#include <compare>
#include <cstdint>
#include <string>

namespace tidepool {

// An integer with a meaning. `Tag` is never defined.
template <typename Tag>
struct StrongId {
  int64_t value = -1;  // -1: none
  [[nodiscard]] bool valid() const { return value >= 0; }
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

using GroupId = StrongId<struct GroupTag>;    // one prompt and its samples; explicit, never from order
using WorkerId = StrongId<struct WorkerTag>;  // a place for a worker process: 0, 1, ...
using Incarnation =
    StrongId<struct IncarnationTag>;      // one life of a worker process; strictly increasing in a run
using SlotId = StrongId<struct SlotTag>;  // a device (a GPU, or a share of CPU cores)
using SlotEpoch = StrongId<struct SlotEpochTag>;      // of a slot; strictly increasing
using TransitionId = StrongId<struct TransitionTag>;  // one change of plan
using Lsn = StrongId<struct LsnTag>;                  // place in the journal, from 0
using StepNumber = StrongId<struct StepTag>;          // optimizer step, from 1; step 0 is the start

// Names a sample: the place of its prompt in the shuffled data order, 0 or the re-issue count, and
// which of the group's samples. Evaluation requests have ordinal = question, issue = the step of
// the evaluation, sample = kEvalSample; they are not journaled. kRowSample: the reset of an environment
// that gives the prompt of a whole group.
struct SampleId {
  static constexpr int32_t kEvalSample = -1, kRowSample = -2;
  int64_t ordinal = -1;
  int32_t issue = 0;
  int32_t sample = 0;
  [[nodiscard]] bool is_eval() const { return sample == kEvalSample; }
  friend auto operator<=>(const SampleId&, const SampleId&) = default;
  // As the one above says; written out because every map by sample asks it some ten times an event.
  friend bool operator<(const SampleId& x, const SampleId& y) {
    if (x.ordinal != y.ordinal) return x.ordinal < y.ordinal;
    return x.issue != y.issue ? x.issue < y.issue : x.sample < y.sample;
  }
};
std::string ToString(const SampleId& tid);  // "12.0.3"

// Weights: a restart opens a new lineage, so a number can never alias.
struct Version {
  int32_t lineage = 0;
  int64_t number = -1;  // published updates so far; -1: none
  [[nodiscard]] bool valid() const { return number >= 0; }
  friend auto operator<=>(const Version&, const Version&) = default;
};
std::string ToString(const Version& version);  // "0:17"

// Who did something: a worker place and its life.
struct WorkerRef {
  WorkerId worker;
  Incarnation inc;
  friend auto operator<=>(const WorkerRef&, const WorkerRef&) = default;
};
std::string ToString(const WorkerRef& ref);  // "w2/inc7"

// A slot and the life of the worker that has it: where a command about a slot goes, and who answers.
struct SlotRef {
  WorkerRef worker;
  SlotId slot;
  friend auto operator<=>(const SlotRef&, const SlotRef&) = default;
};
// Of a message about a slot.
template <typename Message>
SlotRef SlotOf(const Message& m) {
  return {m.worker, m.slot};
}

}  // namespace tidepool
