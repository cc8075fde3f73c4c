#pragma once
// What the scheduler decided, until it is carried out: in the order of decisions, and nothing before the
// records of its round are durable. The scheduler is fed meanwhile. A worker's message is acknowledged only
// after every command that it caused has been carried out. The controller process and the simulated network
// run this very class. Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/time.h"
#include "scheduler/commands.h"
#include "workers/net/attachments.h"

namespace tidepool::workers {

class Effects {
 public:
  struct Decided {
    scheduler::Command command;
    TimePoint at;  // of the decision: what was to last so long lasts so long in the journal too
  };
  struct Ends {
    // Hands the records among these to the disk; Stored is called with the number, which rises. Nothing:
    // there are none.
    std::function<std::optional<int64_t>(const std::vector<Decided>&)> append;
    std::function<void(std::vector<Decided>&)> carry_out;  // may call Add
    std::function<bool()> over;                            // nothing is carried out any more
    // What messages caused that were read then has been carried out. May be empty.
    std::function<void(const std::vector<TimePoint>&)> answered;
  };
  Effects(Attachments& attachments, Ends ends) : attachments_(attachments), ends_(std::move(ends)) {}

  void Add(scheduler::Command command, TimePoint now) { todo_.push_back({std::move(command), now}); }
  // Commands that wait for the end of the round; among them are those that a message caused which was read
  // then.
  [[nodiscard]] size_t waiting() const { return todo_.size(); }
  void Answers(TimePoint read) { read_.push_back(read); }
  // Ends a round: carries out what waits for no record, again and again, until nothing is left.
  void Execute();
  void Stored(int64_t number);
  // Returns how many records among them are not known to be durable.
  int64_t Clear();

 private:
  struct Round {
    int64_t number = 0;  // of its records, or of those before it
    std::vector<Decided> commands;
    std::vector<TimePoint> read;  // the messages that led to them
    Attachments::Snapshot taken;  // messages up to here led to what is decided here or before
  };
  void CarryOut(Round& round);

  Attachments& attachments_;
  const Ends ends_;
  std::vector<Decided> todo_;
  std::vector<TimePoint> read_;  // of todo_
  std::deque<Round> waiting_;
};

}  // namespace tidepool::workers
