#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/observe/append_file.h"
#include "core/observe/json_lines.h"
#include "core/observe/metrics_writer.h"
#include "core/observe/samples_writer.h"
#include "core/observe/tensorboard_writer.h"
#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShowInFileTest, TheOldFileIsWrittenOverWhereAnotherCannotBeMade) {
  const TempFolder folder;
  const std::string path = folder / "status.json";
  std::filesystem::create_directories(folder / "");
  ASSERT_TRUE(ShowInFile(path, R"({"state":"running"})").ok());
  std::filesystem::create_directories(path + ".tmp/in the way");  // as a full disk would be
  ASSERT_TRUE(ShowInFile(path, R"({"state":"failed","why":")" + std::string(900, 'x') + "\"}").ok());
  EXPECT_EQ(nlohmann::json::parse(ReadText(path))["state"], "failed");
  // What does not fit is not written at all.
  EXPECT_FALSE(ShowInFile(path, R"({"state":")" + std::string(9000, 'x') + "\"}").ok());
  EXPECT_EQ(nlohmann::json::parse(ReadText(path))["state"], "failed");
}

std::vector<MetricsRow> RowsOf(const std::string& path) {
  std::vector<MetricsRow> rows;
  EXPECT_TRUE(ForEachMetricsRow(path, [&](const MetricsRow& row) { rows.push_back(row); }).ok());
  return rows;
}

TEST(MetricsWriterTest, RowsComeBackAndHalfOfOneIsLeftOut) {
  const TempFolder folder;
  const std::string path = folder / "a/metrics.jsonl";
  {
    auto writer = MetricsWriter::Create(path);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE(
        writer->Write({.step = 1, .version = {0, 1}, .wall_s = 1.5, .metrics = {{"critic/score/mean", 0.25}}})
            .ok());
    ASSERT_TRUE(writer
                    ->Write({.step = 2,
                             .version = {0, 2},
                             .wall_s = 3,
                             .metrics = {{"x", std::numeric_limits<double>::quiet_NaN()}}})
                    .ok());
  }
  EXPECT_TRUE(ReadText(path).starts_with(
      R"({"step":1,"version":1,"lineage":0,"wall_s":1.5,"metrics":{"critic/score/mean":0.25}})"));
  WriteText(path, ReadText(path) + R"({"step":3,"ver)");  // killed in the middle of a line
  EXPECT_EQ(RowsOf(path).size(), 2U);
  auto again = MetricsWriter::Create(path);
  ASSERT_TRUE(again->Write({.step = 2, .version = {1, 2}, .wall_s = 9, .metrics = {{"y", 7}}}).ok());
  const std::vector<MetricsRow> rows = RowsOf(path);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2].version, (Version{1, 2}));
  EXPECT_EQ(rows[2].metrics.at("y"), 7);
  EXPECT_TRUE(rows[1].metrics.contains("x"));
}

TEST(MetricsWriterTest, ColumnsHaveTheLastOfEachStep) {
  MetricsColumns columns;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  columns.Take({.step = 1, .version = {}, .wall_s = 1, .metrics = {{"a", 1}, {"b", 5}}});
  columns.Take({.step = 3, .version = {}, .wall_s = 3, .metrics = {{"a", 3}, {"c", kNan}}});
  columns.Take({.step = 1, .version = {}, .wall_s = 4, .metrics = {{"a", 10}, {"eval", 0.5}}});
  columns.Take({.step = 2, .version = {}, .wall_s = 5, .metrics = {{"a", 2}}});
  columns.Take({.step = 3, .version = {}, .wall_s = 6, .metrics = {{"a", kNan}, {"c", 7}}});
  EXPECT_EQ(columns.metrics["a"], (Points{{1, 10}, {2, 2}}));
  EXPECT_EQ(columns.metrics["b"], (Points{{1, 5}}))
      << "an evaluation's line must not hide its step's numbers";
  EXPECT_EQ(columns.metrics["c"], (Points{{3, 7}}));
  EXPECT_EQ(columns.metrics["eval"], (Points{{1, 0.5}}));
  EXPECT_EQ(columns.clock, (Points{{1, 4}, {2, 5}, {3, 6}}));
}

TEST(JsonLinesTest, LinesOfAFileOfManyPiecesAreWhole) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "[" + std::to_string(i) + ",\"" + std::string(40000, 'x') + "\"]\n";
  text += "\"" + std::string(9 << 20, 'y') + "\"\n\"half\"";
  WriteText(folder / "f", text);
  for (const bool half : {false, true}) {
    int64_t lines = 0;
    ASSERT_TRUE(
        ForEachJsonLine(folder / "f", half, [&](int64_t line, const nlohmann::json& j) -> StatusOr<bool> {
          EXPECT_EQ(line, ++lines);
          EXPECT_TRUE(line <= 300 ? j[0] == line - 1 : j.is_string()) << line;
          return true;
        }).ok());
    EXPECT_EQ(lines, half ? 302 : 301);
  }
  int64_t lines = 0;
  EXPECT_TRUE(ForEachJsonLine(folder / "f", true, [&](int64_t, const nlohmann::json&) -> StatusOr<bool> {
                return ++lines < 5;
              }).ok());
  EXPECT_EQ(lines, 5);
}

TEST(MetricsWriterTest, DamageIsNamed) {
  const TempFolder folder;
  WriteText(folder / "m.jsonl", "{\"step\":1,\"metrics\":{}}\nnonsense\n");
  EXPECT_THAT(ForEachMetricsRow(folder / "m.jsonl", [](const MetricsRow&) {}).message(),
              HasSubstr("m.jsonl:2: no metrics row"));
  EXPECT_EQ(ForEachMetricsRow(folder / "none", [](const MetricsRow&) {}).code(), StatusCode::kNotFound);
  WriteText(folder / "file", "");
  EXPECT_THAT(MetricsWriter::Create(folder / "file/metrics.jsonl").status().message(), HasSubstr("cannot"));
}

TEST(MetricsWriterTest, FullDiskIsAnErrorThatSaysSo) {
  auto writer = AppendFile::Open("/dev/full");
  ASSERT_TRUE(writer.ok());
  const Status status = writer->Append("x");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/dev/full: cannot write: no space left on the disk"));
}

// A parser of its own for what TensorBoard reads: records, then protobuf.
struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::map<std::string, float> scalars;
};

class Wire {
 public:
  explicit Wire(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] bool done() const { return bytes_.empty(); }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_.at(0));
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
  }
  template <typename T>
  T Fixed() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view Take(size_t n) {
    EXPECT_LE(n, bytes_.size());
    const std::string_view head = bytes_.substr(0, n);
    bytes_.remove_prefix(std::min(n, bytes_.size()));
    return head;
  }
  std::string_view Bytes() { return Take(Varint()); }

 private:
  std::string_view bytes_;
};

uint32_t Unmask(uint32_t masked) { return std::rotl(masked - 0xa282ead8U, 15); }

std::vector<Event> ReadEvents(const std::string& bytes) {
  std::vector<Event> events;
  Wire file(bytes);
  while (!file.done()) {
    const std::string_view length = file.Take(8);
    EXPECT_EQ(Unmask(file.Fixed<uint32_t>()), Crc32c(length));
    uint64_t n = 0;
    std::memcpy(&n, length.data(), 8);
    const std::string_view record = file.Take(n);
    EXPECT_EQ(Unmask(file.Fixed<uint32_t>()), Crc32c(record));
    Event event;
    for (Wire wire(record); !wire.done();) {
      const uint64_t tag = wire.Varint();
      if (tag == (1 << 3 | 1))
        event.wall_time = wire.Fixed<double>();
      else if (tag == (2 << 3))
        event.step = static_cast<int64_t>(wire.Varint());
      else if (tag == (3 << 3 | 2))
        event.file_version = wire.Bytes();
      else if (tag == (5 << 3 | 2)) {
        for (Wire summary(wire.Bytes()); !summary.done();) {
          EXPECT_EQ(summary.Varint(), 1U << 3 | 2);
          Wire value(summary.Bytes());
          EXPECT_EQ(value.Varint(), 1U << 3 | 2);
          const std::string name(value.Bytes());
          EXPECT_EQ(value.Varint(), 2U << 3 | 5);
          event.scalars[name] = value.Fixed<float>();
          EXPECT_TRUE(value.done());
        }
      } else {
        ADD_FAILURE() << "tag " << tag;
        break;
      }
    }
    events.push_back(event);
  }
  return events;
}

TEST(TensorBoardWriterTest, RecordsAreWhatTensorBoardReads) {
  const TempFolder folder;
  auto writer = TensorBoardWriter::Create(folder / "tb", 1700000000.5);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_THAT(writer->path(), HasSubstr("/events.out.tfevents.1700000000."));
  ASSERT_TRUE(writer->Write(300, 1700000001, {{"critic/score/mean", 0.5}, {"actor/lr", 1e-5}}).ok());
  ASSERT_TRUE(writer->Write(301, 1700000002, {}).ok());
  const std::vector<Event> events = ReadEvents(ReadText(writer->path()));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_time, 1700000000.5);
  EXPECT_EQ(events[1].step, 300);
  EXPECT_THAT(events[1].scalars,
              ElementsAre(testing::Pair("actor/lr", 1e-5F), testing::Pair("critic/score/mean", 0.5F)));
}

TEST(TensorBoardWriterTest, ChecksumIsCrc32cOfTheStandard) { EXPECT_EQ(Crc32c("123456789"), 0xE3069283U); }

TEST(SamplesWriterTest, RowsComeBackAndAreForTheOwnerAlone) {
  const TempFolder folder;
  SampleRow row{.tid = {12, 0, 3},
                .prompt = "rev \"ab\"=\n",
                .text = "ba\xC3\xA4",
                .answer = "ba",
                .ids = {4, 5, 1},
                .logprobs = {-0.5F, -0.25F, -1.0F},
                .versions = {3, 3, 4},
                .reward = 0.5,
                .rewards = {{"exact_answer", 1}, {"format", 0}},
                .details = {{"format", "two words"}},
                .ended = true,
                .messages = {{"system", "s"}, {"user", "rev \"ab\"="}},
                .rendered_prompt = "<s>rev",
                .fields = {{"level", "3"}},
                .file = "rows.jsonl",
                .line = 8,
                .row = 7,
                .turns = {{"environment", "e"}, {"policy", "p"}}};
  ASSERT_TRUE(WriteSamples(folder.path(), 7, {row, SampleRow{}}).ok());
  const auto rows = ReadSamples(folder.path(), 7);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_THAT(*rows, ElementsAre(row, SampleRow{}));
  struct stat info {};
  ASSERT_EQ(::stat((folder / "samples/step_7.jsonl").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  ASSERT_TRUE(WriteSamples(folder.path(), 12, {}).ok());
  ASSERT_TRUE(WriteSamples(folder.path(), 7, {row}).ok());  // trained again after a resume
  EXPECT_EQ(ReadSamples(folder.path(), 7)->size(), 1U);
  EXPECT_THAT(SampleSteps(folder.path()), ElementsAre(7, 12));
}

TEST(SamplesWriterTest, OfLongFieldsTheBeginningIsWritten) {
  const TempFolder folder;
  const std::string tests(400 << 10, 'x');
  ASSERT_TRUE(WriteSamples(folder.path(), 1,
                           {{.tid = {1, 0, 0},
                             .prompt = "p",
                             .text = "t",
                             .answer = "a",
                             .fields = {{"level", "3"}, {"tests", tests}, {"units", "m"}}}})
                  .ok());
  const SampleRow row = ReadSamples(folder.path(), 1)->front();
  EXPECT_EQ(row.answer, "a");
  EXPECT_EQ(row.fields.at("level"), "3");
  EXPECT_EQ(row.fields.at("tests"), tests.substr(0, kSampleFieldBytes - 2) + " ... (405506 more bytes)");
  EXPECT_EQ(row.fields.at("units"), " ... (1 more bytes)");
}

TEST(SamplesWriterTest, WhatIsWrittenOfABatchComesFromSeveralGroups) {
  const auto batch = [](int64_t groups, int64_t size) {
    std::vector<int64_t> of;
    for (int64_t g = 0; g < groups; ++g) of.insert(of.end(), static_cast<size_t>(size), g);
    return of;
  };
  EXPECT_THAT(ChooseSamples(batch(8, 8), 8), ElementsAre(0, 1, 16, 17, 32, 33, 48, 49));
  EXPECT_THAT(ChooseSamples(batch(8, 8), 3), ElementsAre(0, 1, 32));
  EXPECT_THAT(ChooseSamples(batch(2, 8), 6), ElementsAre(0, 1, 2, 8, 9, 10));
  EXPECT_THAT(ChooseSamples(batch(6, 1), 3), ElementsAre(0, 2, 4));  // groups of one
  EXPECT_THAT(ChooseSamples(batch(2, 2), -1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ChooseSamples(batch(2, 2), 9), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ChooseSamples(batch(2, 2), 0), ElementsAre());
  EXPECT_THAT(ChooseSamples({}, 4), ElementsAre());
}

TEST(SamplesWriterTest, TextThatIsNoUtf8IsStillWritten) {
  const TempFolder folder;
  ASSERT_TRUE(WriteSamples(folder.path(), 1, {SampleRow{.tid = {}, .prompt = "p", .text = "\xff\xfe"}}).ok());
  EXPECT_EQ(ReadSamples(folder.path(), 1)->at(0).text, "\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tidepool::observe
