#include "core/observe/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <charconv>
#include <memory>
#include <vector>

namespace tidepool::observe {
namespace {

constexpr const char* kLoggerName = "tidepool";

// The two count alike.
spdlog::level::level_enum ToSpdlog(LogLevel level) { return static_cast<spdlog::level::level_enum>(level); }
static_assert(static_cast<int>(LogLevel::kTrace) == SPDLOG_LEVEL_TRACE &&
              static_cast<int>(LogLevel::kError) == SPDLOG_LEVEL_ERROR);

std::shared_ptr<spdlog::logger> Logger() {
  auto logger = spdlog::get(kLoggerName);
  if (logger != nullptr) return logger;
  logger = std::make_shared<spdlog::logger>(kLoggerName, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::warn);
  return logger;
}

}  // namespace

Status SetUpLogging(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  try {
    if (!options.path.empty())
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.path));
    auto logger = std::make_shared<spdlog::logger>(kLoggerName, sinks.begin(), sinks.end());
    std::string fixed;
    if (!options.role.empty()) fixed += " role=" + LogValue(options.role);
    if (!options.worker.empty()) fixed += " worker=" + LogValue(options.worker);
    std::string pattern = "%Y-%m-%dT%H:%M:%S.%eZ level=%l";
    for (const char c : fixed) pattern += c == '%' ? std::string("%%") : std::string(1, c);
    logger->set_pattern(pattern + " %v", spdlog::pattern_time_type::utc);
    logger->set_level(ToSpdlog(options.level));
    logger->flush_on(spdlog::level::info);  // a killed process leaves what it last did
    spdlog::drop(kLoggerName);
    spdlog::register_logger(logger);
  } catch (const std::exception& e) {
    return Unavailable((options.path.empty() ? std::string("log") : options.path) +
                       ": cannot be opened: " + e.what());
  }
  return OkStatus();
}

LogField::LogField(std::string_view k, double v) : key(k) {
  std::array<char, 32> buffer{};
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), v, std::chars_format::general, 6);
  value.assign(buffer.data(), result.ptr);
}

std::string LogValue(std::string_view value, size_t max_bytes) {
  const bool cut = value.size() > max_bytes;
  value = value.substr(0, max_bytes);
  bool plain = !value.empty() && !cut;
  for (const char c : value)
    plain = plain && static_cast<unsigned char>(c) > ' ' && c != '"' && c != '=' && c != '\\' && c != 0x7f;
  if (plain) return std::string(value);
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += {'\\', 'x', kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    } else {
      out += c;
    }
  }
  return out + (cut ? "...\"" : "\"");
}

std::string LogLine(std::string_view event, std::initializer_list<LogField> fields) {
  std::string line = "event=" + LogValue(event);
  for (const LogField& field : fields) line += " " + std::string(field.key) + "=" + LogValue(field.value);
  return line;
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  const auto logger = Logger();
  if (!logger->should_log(ToSpdlog(level))) return;
  logger->log(ToSpdlog(level), spdlog::string_view_t(LogLine(event, fields)));
}

void FlushLogs() { Logger()->flush(); }

}  // namespace tidepool::observe
