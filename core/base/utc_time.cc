#include "core/base/utc_time.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace tidepool {

std::string UtcTimeText(int64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char day[32], text[48];
  std::strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof(text), "%s.%03dZ", day, static_cast<int>(unix_ms % 1000));
  return text;
}

std::optional<int64_t> ParseUtcTime(const std::string& text) {
  std::tm utc{};
  const char* at = ::strptime(text.c_str(), "%Y-%m-%d", &utc);
  double fraction = 0;
  if (at != nullptr && (*at == 'T' || *at == ' ')) {
    at = ::strptime(at + 1, "%H:%M", &utc);
    if (at != nullptr && *at == ':') at = ::strptime(at + 1, "%S", &utc);
    if (at != nullptr && *at == '.') {
      double place = 0.1;
      for (++at; *at >= '0' && *at <= '9'; ++at, place /= 10) fraction += place * (*at - '0');
    }
  }
  if (at != nullptr && *at == 'Z') ++at;
  if (at == nullptr || *at != '\0') return std::nullopt;
  return static_cast<int64_t>(::timegm(&utc)) * 1000 + std::llround(fraction * 1000);
}

}  // namespace tidepool
