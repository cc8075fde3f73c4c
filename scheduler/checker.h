#pragma once
// Proves from a journal alone that nothing was lost, trained twice, trained too old or served unverified.
//
// The predicates G1-G9, Q1-Q10, Q12-Q14, W1-W7, C1-C8, L3 and L5, each at every
// prefix unless it is one of the end. docs/journal.md has the table: what each says, at which records it is
// looked at, and where the others (Q11, C4, L1, L2, L4: no journal can show them) are asserted.
//
// Undone steps: at RESTORE the samples of later steps are queued again. The code shares nothing with the
// ledger but the statistic of Q10 (length_fairness.h), so that one mistake does not hide the other.
// Streaming: memory grows with the samples only.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/ids.h"
#include "core/base/journal_records.h"

namespace tidepool::scheduler {

struct CheckResult {
  bool ok = true;
  std::string predicate;  // "Q4"; "journal" if the records do not even form a journal
  Lsn lsn;                // first record that violates it
  std::string why;
  int64_t records = 0, issued = 0, trained = 0, dropped = 0, open = 0, steps = 0;
  int64_t undone = 0;  // steps that a restore took back; `steps` is without them
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
