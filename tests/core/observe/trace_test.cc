#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/observe/trace_reader.h"
#include "core/observe/trace_writer.h"
#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using ::testing::HasSubstr;

TraceSpan Span(const std::string& name, double start_s, double duration_s) {
  return {.name = name,
          .category = std::string(kRolloutSpan),
          .role = 1,
          .start = {FromSeconds(start_s)},
          .duration = FromSeconds(duration_s),
          .args = {{"tokens", int64_t{5}}, {"share", 0.5}, {"tid", std::string("1.0.2")}}};
}

nlohmann::json Parse(const std::string& path) {
  gzFile file = ::gzopen(path.c_str(), "rb");
  std::string text;
  std::array<char, 4096> piece{};
  for (int got = 0; (got = ::gzread(file, piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<size_t>(got));
  EXPECT_EQ(::gzclose_r(file), Z_OK) << "cut off";
  return nlohmann::json::parse(text);
}

TEST(TraceWriterTest, FileIsCompleteAfterEveryFlush) {
  const TempFolder folder;
  const std::string path = folder / "trace/worker-1.json.gz";
  auto writer = TraceWriter::Create(
      path, {.worker = 1, .worker_name = "worker \"1\"", .clock_offset = FromSeconds(100)});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_EQ(Parse(path)["traceEvents"].size(), 1U);  // the name of the process
  writer.value()->NameRole(1, "rollout");
  for (int i = 0; i < 50; ++i) {
    writer.value()->Add(Span("generate", i, 0.5));
    ASSERT_TRUE(writer.value()->Flush().ok());
    ASSERT_EQ(Parse(path)["traceEvents"].size(), static_cast<size_t>(i) + 3);
  }
  const auto event = Parse(path)["traceEvents"][2];
  EXPECT_EQ(event["ph"], "X");
  EXPECT_EQ(event["ts"], 100e6);  // in the run's clock, microseconds
  EXPECT_EQ(event["dur"], 0.5e6);
  EXPECT_EQ(event["pid"], 1);
  EXPECT_EQ(event["tid"], 1);
  EXPECT_EQ(event["args"]["tid"], "1.0.2");
}

TEST(TraceWriterTest, KilledProcessLeavesAValidFile) {
  const TempFolder folder;
  const std::string path = folder / "killed.json.gz";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto writer = TraceWriter::Create(path, {.worker = 2, .worker_name = "w"});
    for (int i = 0; i < 500; ++i) {
      writer.value()->Add(Span("generate", i, 1));
      if (i % 30 == 0 || i == 495) (void)writer.value()->Flush();
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_GT(Parse(path)["traceEvents"].size(), 490U);
}

TEST(TraceWriterTest, ThreadsMayWriteAtTheSameTime) {
  const TempFolder folder;
  const std::string path = folder / "many.json.gz";
  {
    auto writer = TraceWriter::Create(path, {.worker = 1, .worker_name = "w"});
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) {
          writer.value()->Add(Span("x", i, 1));
          if (i % 50 == 0) EXPECT_EQ(writer.value()->Flush(), OkStatus());
        }
      });
    }
    threads.clear();
    TraceSpan bad = Span("fault", 1, 1);
    bad.args = {{"what", std::string("\xff")}};
    writer.value()->Add(bad);
  }
  EXPECT_EQ(Parse(path)["traceEvents"].size(), 802U);
}

TEST(TraceWriterTest, FullDiskEndsTheTraceAndNotTheRun) {
  EXPECT_EQ(TraceWriter::Create("/dev/full", {.worker = 1, .worker_name = "w"}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(TraceReaderTest, ReadsAllWorkers) {
  const TempFolder folder;
  for (int64_t worker : {1, 2}) {
    auto writer = TraceWriter::Create(folder / ("t/w" + std::to_string(worker) + ".json.gz"),
                                      {.worker = worker, .worker_name = "worker " + std::to_string(worker)});
    writer.value()->NameRole(1, "rollout");
    writer.value()->Add(Span("generate", 10.0 - static_cast<double>(worker), 2));
  }
  WriteText(folder / "t/broken.json.gz", "\x1f\x8b nonsense");
  const ReadTrace trace = ReadTraces(folder / "t");
  ASSERT_EQ(trace.spans.size(), 2U);
  EXPECT_EQ(trace.spans[0].worker, 2);
  EXPECT_DOUBLE_EQ(trace.spans[0].start_s, 8);
  EXPECT_EQ(trace.workers.at(1), "worker 1");
  EXPECT_EQ(trace.roles.at({2, 1}), "rollout");
  ASSERT_EQ(trace.problems.size(), 1U);
  EXPECT_THAT(trace.problems[0], HasSubstr("damaged"));
}

TEST(TraceReaderTest, KeepsNoMoreOfALongRunThanAPictureShows) {
  const TempFolder folder;
  constexpr int kSpans = 150000;
  std::string text = R"({"otherData": [{"ph": "X", "name": "none"}], "traceEvents": [)";
  for (int i = 0; i < kSpans; ++i) {
    char event[160];
    std::snprintf(event, sizeof(event),
                  R"(%s{"ph":"X","name":"g","cat":"rollout","pid":1,"tid":%d,"ts":%d,"dur":900})",
                  i > 0 ? "," : "", i % 3, i * 1000);
    text += event;
  }
  WriteText(folder / "w.json", text + "]}");
  const ReadTrace trace = ReadTraces(folder.path());
  EXPECT_THAT(trace.problems, testing::IsEmpty());
  EXPECT_LE(trace.spans.size(), kSpansKeptMax);
  EXPECT_GT(trace.spans.size(), 1000U) << "a time line still";
  int64_t count = 0;
  double end = 0;
  for (const ReadSpan& span : trace.spans) {
    count += span.count;
    end = std::max(end, span.start_s + span.duration_s);
  }
  EXPECT_EQ(count, kSpans);
  EXPECT_NEAR(end, kSpans * 1e-3, 1e-3);
}

TEST(TraceReaderTest, OfAFileThatIsCutOffItsBeginningIsShown) {
  const TempFolder folder;
  WriteText(folder / "w.json",
            R"({"traceEvents": [{"ph":"X","name":"g","cat":"rollout","pid":1,"ts":2e6,"dur":5},{"ph":"X)");
  const ReadTrace trace = ReadTraces(folder.path());
  EXPECT_EQ(trace.spans.size(), 1U);
  EXPECT_THAT(trace.problems, testing::ElementsAre(HasSubstr("no trace")));
}

}  // namespace
}  // namespace tidepool::observe
