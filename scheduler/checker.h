#pragma once
// Proves from a journal alone that nothing was lost, trained twice, trained too old or served unverified.
//
// The predicates of docs/journal.md (MECHANISMS 1.5, 2.5, 5.2), each at every prefix:
//   Q1 a sample is in exactly one state and moves only forward; at the end of a run that did all its
//      steps none is queued, leased, running or awaiting.   Q2 trained at most once, never trained and
//      dropped, one accepted ENQ.   Q3 drop reasons known, re-issues within max_reissues.   Q4 every
//      token trained has 0 <= lag <= eta (across restores: through the last common ancestor).   Q5 a
//      group is admitted only below the capacity.   Q6 trained => its attempt ended by itself and a
//      grader returned a reward (rl).   Q7 a group is trained in one step; who is missing was dropped.
//   Q8 nothing is accepted from a fenced or unknown worker.   Q9 rows of the data order are issued
//      without holes or repeats; again only after expiry.   Q10 (end) of 500 or more complete samples that the ledger
//      dropped, no decile of length has more than ten times the share of another.
//   G1 one grant a slot.  G2 epochs increase and effects carry the current one.  G3 plans start from the
//      role that is held.  G4 each transition ends once, in time.  G5 no grant without proof of release.
//   G8 chunks only where rollout holds the slot, steps only where the actor does.
//   W1 versions published once, in order.  W2 loads increase.  W3 served => admitted => loaded with the
//      published digest.  W6 with
//      rollout.pin_version the tokens of a sample are of one version.  W5 published => committed, same digest.
//   C1 a restore names a commit and its step.  C2 a newer checkpoint exists when one is deleted.
//   C3 one cut.  C5 newer ones were rejected first.  C6 a recovery copy is at most one step behind.
//   C8 begin before commit, commit of step 0 before the first ISSUE.  L3 an abnormal end names its fault.
// Undone steps: at RESTORE the samples of later steps are queued again. The code shares nothing with the
// ledger, so that one mistake does not hide the other. Streaming: memory grows with the samples only.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/ids.h"
#include "core/base/journal_records.h"

namespace tidepool::scheduler {

struct CheckResult {
  bool ok = true;
  std::string predicate;   // "Q4"; "journal" if the records do not even form a journal
  Lsn lsn;                 // first record that violates it
  std::string why;
  int64_t records = 0, issued = 0, trained = 0, dropped = 0, open = 0, steps = 0;
};

class Checker {
 public:
  Checker();
  ~Checker();
  Checker(Checker&&) noexcept;
  Checker& operator=(Checker&&) noexcept;
  // After the first violation further records are only counted. Returns result().ok.
  bool Feed(const JournalEntry& entry);
  [[nodiscard]] CheckResult result() const;

 private:
  struct State;
  std::unique_ptr<State> s_;
};

CheckResult Check(std::span<const JournalEntry> journal);

}  // namespace tidepool::scheduler
