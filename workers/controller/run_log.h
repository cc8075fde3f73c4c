#pragma once
// What the log of a controller says of the journal's records, so that each moment of a run is said once,
// where it is recorded (docs/operating.md has the table). Pure.

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/journal_records.h"

namespace tidepool::workers {

using LogFields = std::vector<std::pair<std::string, std::string>>;

struct LogEvent {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  LogFields fields;
  std::string text;  // a sentence for people; may be empty
};

// Nothing of records that say what became of a sample, and of those that are told otherwise (CONFIG,
// END_RUN). place_name: "device-0", as the files in logs/ are called.
std::optional<LogEvent> EventOf(const JournalRecord& r,
                                const std::function<std::string(int64_t)>& place_name);

// The scheduler's names of workers in its sentences and actors, "worker w1/inc3" and "actor=w1", by their
// places: "worker reward-0 (w1/inc3)", "actor=reward-0".
std::string NamePlaces(const std::string& text, const std::function<std::string(int64_t)>& place_name);

}  // namespace tidepool::workers
