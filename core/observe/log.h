#pragma once
// Logs: one file a process in logs/, and stderr if wished. A line is key=value:
//
//   2026-01-31T12:00:00.123Z level=info event=joined role=rollout worker=2 inc=7 host="a b"
//
// spdlog stays behind this header. The logger is the process's one global. Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/choices.h"
#include "core/base/status.h"

namespace tidepool::observe {

using tidepool::LogLevel;

struct LogOptions {
  std::string path;  // file, appended to; empty: none
  LogLevel level = LogLevel::kInfo;
  std::string role = {};    // put into every line where not empty: "controller", "rollout"
  std::string worker = {};  // "w2/inc7"
};
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
// Waits until all lines are in the file.
void FlushLogs();

// value as it stands, or in quotes with \" \\ \n \xNN escaped where it has spaces, quotes, '=' or
// control characters. At most `max_bytes` are kept.
std::string LogValue(std::string_view value, size_t max_bytes = 2000);
// "event=x key=value ..."
std::string LogLine(std::string_view event, std::initializer_list<LogField> fields);

}  // namespace tidepool::observe
