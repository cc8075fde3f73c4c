#pragma once
// Which session of a pool computes next (device_pool.h). Pure; not thread-safe.
//
// A phase is generating or training. Sessions that generate keep theirs until none has tokens to make, those
// that train keep theirs until none waits to train. So sessions generate at the same time and share the steps
// of their engine: reading the model for the rows of all of them costs little more than for those of one.
// Nothing waits for an idle device, but for the moment between two steps of a session. What is short goes
// before both, and who has waited for kPatience before all, whatever the phase.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "core/base/time.h"

namespace tidepool::workers {

enum class TurnKind { kShort, kGenerates, kTrains };

class TurnOrder {
 public:
  // No phase of a sweep of small models lasts as long; of others a session is heard in the midst of one.
  static constexpr Duration kPatience = std::chrono::seconds(30);

  using Ticket = uint64_t;
  Ticket Ask(TurnKind kind, TimePoint now);
  // Again, for the next piece of the same work: before those of its kind that have asked later.
  void AskAgain(Ticket ticket, TurnKind kind, TimePoint now) { waiting_[ticket] = {kind, now}; }
  [[nodiscard]] bool waits() const { return !waiting_.empty(); }
  // Says whether a session has tokens to make, now and when it next asks.
  void SetGenerates(const void* session, bool generates);
  // Whose turn it is now, who does not wait any more then. None: nobody's. requires that no turn is under way
  std::optional<Ticket> Next(TimePoint now);

 private:
  struct Waiting {
    TurnKind kind;
    TimePoint since;
  };
  [[nodiscard]] std::optional<Ticket> First(TurnKind kind) const;

  Ticket next_ = 0;
  std::map<Ticket, Waiting> waiting_;
  std::set<const void*> generate_;
  TurnKind phase_ = TurnKind::kGenerates;
};

}  // namespace tidepool::workers
