#include "core/base/utc_time.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

TEST(UtcTimeTest, IsReadAsItIsWritten) {
  EXPECT_EQ(UtcTimeText(1769860800123), "2026-01-31T12:00:00.123Z");
  for (const int64_t ms : {int64_t{0}, int64_t{1769860800123}, int64_t{951782400999}})
    EXPECT_EQ(ParseUtcTime(UtcTimeText(ms)), ms);
}

TEST(UtcTimeTest, PartsMayBeLeftOut) {
  constexpr int64_t kNoon = 1769860800000;
  for (const char* text : {"2026-01-31T12:00:00Z", "2026-01-31T12:00:00", "2026-01-31 12:00"})
    EXPECT_EQ(ParseUtcTime(text), kNoon) << text;
  EXPECT_EQ(ParseUtcTime("2026-01-31"), kNoon - 12 * 3600 * 1000);
  EXPECT_EQ(ParseUtcTime("2026-01-31T12:00:00.5"), kNoon + 500);
  for (const char* text : {"", "noon", "12:00", "2026-01-31T", "2026-01-31T12:00:00 CET", "2026-13-01"})
    EXPECT_EQ(ParseUtcTime(text), std::nullopt) << text;
}

}  // namespace
}  // namespace tidepool
