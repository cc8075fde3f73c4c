#pragma once
// What the log of a controller says of the journal's records and of what the scheduler says beside them, so
// that each moment of a run is said once, where it is recorded (docs/operating.md has the table). Pure.

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/journal_records.h"
#include "scheduler/commands.h"

namespace tidepool::workers {

using LogFields = std::vector<std::pair<std::string, std::string>>;

struct LogEvent {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  LogFields fields;
  std::string text;  // a sentence for people; may be empty
};

using NameOfPlace = std::function<std::string(int64_t)>;  // "device-0", as the files in logs/ are called

// Nothing of records that say what became of a sample, and of those that are told otherwise (CONFIG,
// END_RUN).
std::optional<LogEvent> EventOf(const JournalRecord& r, const NameOfPlace& place_name);
// "worker reward-0 does not get on".
LogEvent EventOf(const scheduler::command::Log& c, const NameOfPlace& place_name);

}  // namespace tidepool::workers
