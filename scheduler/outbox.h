#pragma once
// Where decisions go: records are applied to the run's state and written, commands are handed out.

#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "scheduler/commands.h"
#include "scheduler/run_state.h"

namespace tidepool::scheduler {

class Outbox {
 public:
  explicit Outbox(RunState& state) : state_(state) {}

  // A record that does not fit the state is a bug of the code that emits it.
  void Record(JournalRecord r) {
    const Status applied = state_.Apply(r);
    TP_CHECK(applied.ok()) << applied.message();
    Do(command::Append{std::move(r)});
  }
  // So many more are coming.
  void Expect(size_t commands) { commands_.reserve(commands_.size() + commands); }
  void Do(Command c) {
    if (commands_.capacity() == 0)
      commands_.reserve(6);  // an event's usual answer; small enough for the allocator's fast path
    commands_.push_back(std::move(c));
  }
  using Fields = std::vector<std::pair<std::string, std::string>>;
  // Something is wrong; what it is worth knowing beside that.
  void Warn(std::string event, std::string text, Fields fields = {}) {
    Say(LogLevel::kWarn, {}, std::move(event), std::move(text), std::move(fields));
  }
  void Note(std::string event, std::string text, Fields fields = {}) {
    Say(LogLevel::kInfo, {}, std::move(event), std::move(text), std::move(fields));
  }
  // All is well.
  void Detail(std::string event, std::string text, Fields fields = {}) {
    Say(LogLevel::kDebug, {}, std::move(event), std::move(text), std::move(fields));
  }
  // The text goes on behind the name of the worker: "does not get on".
  void Say(LogLevel level, const WorkerRef& about, std::string event, std::string text, Fields fields = {}) {
    Do(command::Log{level, std::move(event), std::move(text), std::move(fields), about});
  }
  [[nodiscard]] std::vector<Command> Take() { return std::exchange(commands_, {}); }

 private:
  RunState& state_;
  std::vector<Command> commands_;
};

}  // namespace tidepool::scheduler
