#include "core/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

TEST(LogTest, LinesAreKeysAndValues) {
  EXPECT_EQ(LogLine("joined", {{"worker", 3}, {"host", "a b"}, {"share", 0.25}, {"ok", true}}),
            "event=joined worker=3 host=\"a b\" share=0.25 ok=true");
}

TEST(LogTest, ValuesCannotForgeALine) {
  EXPECT_EQ(LogValue("x"), "x");
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("a\nlevel=error"), "\"a\\nlevel=error\"");
  EXPECT_EQ(LogValue("say \"hi\" \\"), "\"say \\\"hi\\\" \\\\\"");
  EXPECT_EQ(LogValue("\x1b[2J"), "\"\\x1b[2J\"");
  EXPECT_EQ(LogValue(std::string(10, 'x'), 4), "\"xxxx...\"");
}

TEST(LogTest, FileGetsLinesFromTheLevelUp) {
  const TempFolder folder;
  ASSERT_TRUE(
      SetUpLogging(
          {.path = folder / "logs/w.log", .level = LogLevel::kInfo, .role = "roll%out", .worker = "w2/inc7"})
          .ok());
  Log(LogLevel::kInfo, "started", {{"pid", 5}});
  Log(LogLevel::kDebug, "hidden");
  Log(LogLevel::kError, "broke", {{"why", "no {} space"}});
  FlushLogs();
  const std::string text = ReadText(folder / "logs/w.log");
  EXPECT_THAT(
      text,
      testing::ContainsRegex(
          "^20[0-9][0-9]-[0-9-]+T[0-9:.]+Z level=info role=roll%out worker=w2/inc7 event=started pid=5\n"));
  EXPECT_THAT(
      text, testing::HasSubstr("level=error role=roll%out worker=w2/inc7 event=broke why=\"no {} space\"\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("hidden")));
  ASSERT_TRUE(SetUpLogging({}).ok());
}

TEST(LogTest, UnwritableFileIsAnError) {
  EXPECT_THAT(SetUpLogging({.path = "/proc/none/x.log"}).message(),
              testing::HasSubstr("/proc/none/x.log: cannot be opened"));
}

}  // namespace
}  // namespace tidepool::observe
