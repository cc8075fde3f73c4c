#pragma once
// Times of day for people and files, in UTC: "2026-01-31T12:00:00.123Z". Pure.

#include <cstdint>
#include <optional>
#include <string>

namespace tidepool {

std::string UtcTimeText(int64_t unix_ms);
// With or without the fraction, the seconds, the Z; a space in place of the T; or the day alone. nullopt: it
// is no such time.
std::optional<int64_t> ParseUtcTime(const std::string& text);

}  // namespace tidepool
