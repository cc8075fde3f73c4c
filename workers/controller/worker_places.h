#pragma once
// The worker places of a run as its controller process sees them: which process came to each, what it said of
// itself, whether the scheduler knows of it. It stands between the scheduler, which decides about
// incarnations, and Attachments, which has the sessions. The controller process and the simulated network run
// this very class. Pure; not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "workers/net/attachments.h"

namespace tidepool::workers {

class WorkerPlaces {
 public:
  struct Place {
    bool joined = false;    // the scheduler was told that a process is there, and not yet that it is gone
    bool given_up = false;  // its process was, and has not been seen to end
    Incarnation inc;        // that the scheduler decided last
    up::Hello hello;        // of the process that joined
    std::vector<scheduler::event::OfferedChunk> offered;  // by it, until Welcome
    std::map<SlotId, Role> granted;                       // the last of each slot
    std::optional<TimePoint> due;                         // when a process is to be started
  };
  struct Ends {
    std::function<void(scheduler::Event)> feed;
    std::function<void(int64_t place)> left;  // by its process, or that one was given up
  };
  WorkerPlaces(Attachments& attachments, Ends ends) : attachments_(attachments), ends_(std::move(ends)) {}

  // --- what happens
  void Arrived(Attachments::Arrived& e, std::string name);
  void Lost(const Attachments::Lost& e);
  // A process that was started here has ended. `blames`: the plug-in that it was in; empty: none. for_good:
  // another one would end so again.
  void Ended(int64_t place, int64_t pid, const std::string& why, const std::string& blames = "",
             bool for_good = false);

  // --- what the scheduler wants
  // At the decision: who is in a place is known from then on, and told when the record of it is durable.
  void Decided(const scheduler::command::Welcome& c) { places_[c.worker.value].inc = c.inc; }
  // What the process offered. Nothing: it is gone, or another has come since.
  std::optional<std::vector<scheduler::event::OfferedChunk>> Welcome(const scheduler::command::Welcome& c,
                                                                     down::Welcome terms);
  void Refuse(const scheduler::command::RefuseWorker& c);
  void Kill(const scheduler::command::KillWorker& c);  // the caller kills the process, if it can
  void Start(const scheduler::command::StartWorker& c, TimePoint now) {
    places_[c.worker.value].due = now + c.delay;
  }
  std::vector<int64_t> TakeDue(TimePoint now);
  void Granted(const scheduler::command::Grant& c) {
    places_[c.worker.worker.value].granted[c.slot] = c.role;
  }
  // Nothing for a worker whose loss is on its way.
  template <typename Body>
  void Send(const WorkerRef& worker, Body body) {
    if (Has(worker)) attachments_.Send(worker.worker.value, std::move(body));
  }

  [[nodiscard]] const std::map<int64_t, Place>& places() const { return places_; }
  // What the process of that worker said when it came; nothing in it where there is none.
  [[nodiscard]] const up::Hello& HelloOf(WorkerId worker) { return places_[worker.value].hello; }
  // Of the processes that host environments for others, by place.
  [[nodiscard]] std::vector<const up::Hello*> EnvironmentHosts() const;

 private:
  [[nodiscard]] bool Has(const WorkerRef& worker) const {
    const auto it = places_.find(worker.worker.value);
    return it != places_.end() && it->second.joined && it->second.inc == worker.inc;
  }
  void Leave(int64_t place);
  void Lose(int64_t place, scheduler::event::WorkerLost lost);

  Attachments& attachments_;
  const Ends ends_;
  std::map<int64_t, Place> places_;
};

}  // namespace tidepool::workers
