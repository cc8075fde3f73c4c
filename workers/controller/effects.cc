#include "workers/controller/effects.h"

#include <algorithm>

namespace tidepool::workers {

void Effects::Execute() {
  while (!todo_.empty() && !ends_.over()) {
    Round round;
    round.commands.swap(todo_);
    round.read.swap(read_);
    const std::optional<int64_t> number = ends_.append(round.commands);
    if (!number && waiting_.empty()) {
      CarryOut(round);
    } else {
      round.number = number ? *number : waiting_.back().number;
      waiting_.push_back(std::move(round));
    }
  }
  // Everything that was taken is decided: its effects are here, or wait with the last round.
  if (waiting_.empty()) {
    Attachments::Snapshot taken;
    attachments_.Taken(taken);
    attachments_.Acknowledge(taken);
  } else {
    attachments_.Taken(waiting_.back().taken);
  }
}

void Effects::Stored(int64_t number) {
  while (!ends_.over() && !waiting_.empty() && waiting_.front().number <= number) {
    Round round = std::move(waiting_.front());
    waiting_.pop_front();
    CarryOut(round);
  }
}

int64_t Effects::Clear() {
  int64_t records = 0;
  const auto count = [&](const std::vector<Decided>& decided) {
    records += std::ranges::count_if(decided, [](const Decided& d) {
      return std::holds_alternative<scheduler::command::Append>(d.command);
    });
  };
  count(todo_);
  for (const Round& round : waiting_) count(round.commands);
  todo_.clear(), read_.clear(), waiting_.clear();
  return records;
}

void Effects::CarryOut(Round& round) {
  attachments_.Acknowledge(round.taken);
  ends_.carry_out(round.commands);
  if (ends_.answered && !round.read.empty()) ends_.answered(round.read);
}

}  // namespace tidepool::workers
