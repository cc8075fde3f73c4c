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
  EXPECT_EQ(LogValue("say \"hi\" \\"), "\"say 'hi' \\\\\"");
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

TEST(LogTest, AMomentIsWrittenWithItsTime) {
  const TempFolder folder;
  ASSERT_TRUE(SetUpLogging({.path = folder / "c.log", .role = "controller"}).ok());
  LogAt(std::chrono::system_clock::time_point(std::chrono::milliseconds(1769860800123)), LogLevel::kWarn,
        LogLine("lost", {{"text", "it \"is\" gone"}}));
  FlushLogs();
  EXPECT_EQ(ReadText(folder / "c.log"),
            "2026-01-31T12:00:00.123Z level=warn role=controller event=lost text=\"it 'is' gone\"\n");
  ASSERT_TRUE(SetUpLogging({}).ok());
}

TEST(LogTest, LastWordsAreTheLastErrorOrWhatIsNoLogLine) {
  const std::string start = "2026-01-31T12:00:00.123Z level=info event=start\n";
  const std::string error = "2026-01-31T12:00:00.124Z level=error event=x text=\"a b\"\n";
  EXPECT_EQ(LastWords(start + error + start), "a b");
  EXPECT_EQ(LastWords(error + "terminate called\n" + start), "terminate called");
  EXPECT_EQ(LastWords("2026-01-31T12:00:00.124Z level=error event=x text=short\n"), "short");
  EXPECT_EQ(LastWords(start), "");
  EXPECT_EQ(LastWords(""), "");
  EXPECT_EQ(LastWords("\x1b[2Jxxxx\n", 6), " [2Jxx ...");
}

TEST(LogTest, UnwritableFileIsAnError) {
  EXPECT_THAT(SetUpLogging({.path = "/proc/none/x.log"}).message(),
              testing::HasSubstr("/proc/none/x.log: cannot be opened"));
}

}  // namespace
}  // namespace tidepool::observe
