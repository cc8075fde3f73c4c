#include "core/observe/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>
#include <vector>

#include "core/base/utf8.h"

namespace tidepool::observe {
namespace {

constexpr const char* kLoggerName = "tidepool";

// The two count alike.
spdlog::level::level_enum ToSpdlog(LogLevel level) { return static_cast<spdlog::level::level_enum>(level); }
// The level by the word that the config has for it.
class LevelWord : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& msg, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string_view word = Name(static_cast<LogLevel>(msg.level));
    out.append(word.data(), word.data() + word.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelWord>();
  }
};

static_assert(static_cast<int>(LogLevel::kTrace) == SPDLOG_LEVEL_TRACE &&
              static_cast<int>(LogLevel::kError) == SPDLOG_LEVEL_ERROR);

void Furnish(spdlog::logger& logger, const LogOptions& options) {
  const std::string context = LogContext(options);
  const std::string fixed = (context.empty() ? "" : " ") + context;
  // %l says "warning" where the config says warn.
  std::string pattern = "%Y-%m-%dT%H:%M:%S.%eZ level=%*";
  for (const char c : fixed) pattern += c == '%' ? std::string("%%") : std::string(1, c);
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<LevelWord>('*').set_pattern(pattern + " %v");
  logger.set_formatter(std::move(formatter));
  logger.set_level(ToSpdlog(options.level));
  logger.flush_on(spdlog::level::debug);  // a killed process leaves what it last did
  // A disk that is full is told by the run itself, and not by a line of spdlog on the terminal.
  logger.set_error_handler([](const std::string&) {});
}

std::shared_ptr<spdlog::logger> Logger() {
  auto logger = spdlog::get(kLoggerName);
  if (logger != nullptr) return logger;
  logger = std::make_shared<spdlog::logger>(kLoggerName, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  Furnish(*logger, {.path = "", .level = LogLevel::kWarn});
  return logger;
}

}  // namespace

std::string LogContext(const LogOptions& options) {
  std::string text;
  const auto add = [&text](const char* key, const std::string& value) {
    if (!value.empty()) text += (text.empty() ? "" : " ") + std::string(key) + "=" + LogValue(value);
  };
  add("run", options.run);
  add("host", options.host);
  add("epoch", options.epoch > 0 ? std::to_string(options.epoch) : "");
  add("role", options.role);
  add("worker", options.worker);
  return text;
}

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

Status SetUpLogging(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  try {
    if (options.path.empty()) {
      sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    } else {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.path));
    }
    auto logger = std::make_shared<spdlog::logger>(kLoggerName, sinks.begin(), sinks.end());
    Furnish(*logger, options);
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
    if (c == '"') {
      out += '\'';
    } else if (c == '\\') {
      out += "\\\\";
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

std::string LogLine(std::string_view event, const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string line = "event=" + LogValue(event);
  for (const auto& [key, value] : fields) line += " " + key + "=" + LogValue(value);
  return line;
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  const auto logger = Logger();
  if (!logger->should_log(ToSpdlog(level))) return;
  logger->log(ToSpdlog(level), spdlog::string_view_t(LogLine(event, fields)));
}

void LogAt(std::chrono::system_clock::time_point when, LogLevel level, const std::string& line) {
  const auto logger = Logger();
  if (logger->should_log(ToSpdlog(level)))
    logger->log(when, spdlog::source_loc{}, ToSpdlog(level), spdlog::string_view_t(line));
}

void FlushLogs() { Logger()->flush(); }

std::string LastWords(std::string_view lines, size_t max_bytes) {
  std::string_view words;
  while (!lines.empty() && words.empty()) {
    const size_t feed = lines.find_last_of('\n');
    std::string_view line = feed == std::string_view::npos ? lines : lines.substr(feed + 1);
    lines = feed == std::string_view::npos ? std::string_view() : lines.substr(0, feed);
    constexpr std::string_view kLevel = "Z level=";
    constexpr size_t kTime = std::string_view("2026-01-31T12:00:00.123").size();
    if (line.size() < kTime || line.substr(kTime, kLevel.size()) != kLevel) {
      words = line;
    } else if (line.substr(kTime + kLevel.size()).starts_with("error")) {
      constexpr std::string_view kText = " text=";
      const size_t text = line.find(kText);
      words = line.substr(text == std::string_view::npos ? kTime + 2 : text + kText.size());
      if (words.size() > 1 && words.starts_with('"') && words.ends_with('"'))
        words = words.substr(1, words.size() - 2);
    }
    while (!words.empty() && words.front() == ' ') words.remove_prefix(1);
  }
  const bool cut = words.size() > max_bytes;
  if (cut) words = words.substr(0, CharacterStart(words, max_bytes));
  std::string out(words);
  for (char& c : out) c = static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  return out + (cut ? " ..." : "");
}

}  // namespace tidepool::observe
