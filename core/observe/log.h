#pragma once
// Logs of a run: one file a process in logs/, all with one format and the clock of the machine in UTC. A line
// is key=value; a sentence for people stands last, as text:
//
//   2026-01-31T12:00:00.123Z level=warn run=r1 host=n0 epoch=1 role=controller event=worker_lost
//   worker=reward-0/inc7 text="it was killed"
//
// spdlog stays behind this header. The logger is the process's one global. Thread-safe.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/status.h"

namespace tidepool::observe {

using tidepool::LogLevel;

struct LogOptions {
  std::string path;  // file, appended to; empty: stderr
  LogLevel level = LogLevel::kInfo;
  // Put into every line where not empty.
  std::string run = {};     // id of the run
  std::string host = {};    // name of the host
  std::string role = {};    // "controller", "device"
  std::string worker = {};  // "reward-0/inc7"
  int64_t epoch = 0;        // of the controller; 0: none yet
};
// Name of this host, "?" where the system does not say.
std::string HostName();
// What it puts into every line: "run=r1 host=n0 epoch=1 role=controller".
std::string LogContext(const LogOptions& options);
// Before it is called, and after a failure, lines go to stderr from kWarn up. May be called again.
Status SetUpLogging(const LogOptions& options);

// A key and its value as text; numbers and texts convert.
struct LogField {
  std::string_view key;
  std::string value;
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  LogField(std::string_view k, double v);
  template <typename T>
  requires std::is_integral_v<T> LogField(std::string_view k, T v) : key(k), value(std::to_string(v)) {}
};

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});
// A line (LogLine) of something that happened at `when`, written by whoever has the time to.
void LogAt(std::chrono::system_clock::time_point when, LogLevel level, const std::string& line);
// Waits until all lines are in the file.
void FlushLogs();

// value as it stands, or in quotes where it is empty or has spaces, quotes, '=' or control characters: those
// are escaped as \n and \xNN, a backslash as two, and a quote becomes a single one, so that quotes never
// stand in quotes. At most `max_bytes` are kept.
std::string LogValue(std::string_view value, size_t max_bytes = 2000);
// "event=x key=value ..."
std::string LogLine(std::string_view event, std::initializer_list<LogField> fields);
std::string LogLine(std::string_view event, const std::vector<std::pair<std::string, std::string>>& fields);

// Of lines that a process left (in any format, oldest first): why it ended, as far as it said so. The text of
// its last line of level error or, where something else than a line of a log comes last, that. Control
// characters are gone, at most `max_bytes` are kept. Empty: it said nothing.
std::string LastWords(std::string_view lines, size_t max_bytes = 400);

}  // namespace tidepool::observe
