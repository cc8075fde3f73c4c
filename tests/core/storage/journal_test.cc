#include "core/storage/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/base/rng.h"
#include "core/base/thread_annotations.h"
#include "core/storage/journal_codec.h"
#include "core/storage/journal_format.h"
#include "tests/core/base/memory_file_system.h"
#include "tests/core/storage/random_records.h"

namespace tidepool::storage {
namespace {

using testing::HasSubstr;

constexpr const char* kDir = "run/journal";

std::string Bytes(const JournalRecord& record) {
  std::string out = std::to_string(record.index()) + ":";
  EncodeFields(record, out);
  return out;
}

StatusOr<std::unique_ptr<JournalWriter>> OpenAndRead(FileSystem& fs, const JournalOptions& options,
                                                     JournalContents& found) {
  return JournalWriter::Open(fs, kDir, "run-1", options, &found.summary, [&](JournalEntry&& entry) {
    found.entries.push_back(std::move(entry));
    return OkStatus();
  });
}

std::unique_ptr<JournalWriter> MustOpen(FileSystem& fs, const JournalOptions& options = {},
                                        JournalContents* earlier = nullptr) {
  JournalContents found;
  auto writer = OpenAndRead(fs, options, earlier == nullptr ? found : *earlier);
  TP_CHECK(writer.ok()) << writer.status().ToString();
  return std::move(writer).value();
}

JournalContents MustRead(FileSystem& fs) {
  auto contents = ReadJournal(fs, kDir, "run-1");
  TP_CHECK(contents.ok()) << contents.status().ToString();
  return std::move(contents).value();
}

TEST(JournalCodecTest, EveryKindSurvivesTheRoundTrip) {
  Rng rng(1);
  for (size_t kind = 0; kind < std::variant_size_v<JournalRecord>; ++kind) {
    for (int i = 0; i < 20; ++i) {
      const JournalRecord record = RandomRecord(rng, kind);
      std::string bytes;
      EncodeFields(record, bytes);
      const auto back = DecodeFields(KindOf(record), bytes);
      ASSERT_TRUE(back.ok()) << RecordName(record) << ": " << back.status().ToString();
      EXPECT_EQ(Bytes(*back), Bytes(record)) << RecordName(record);
    }
  }
}

TEST(JournalCodecTest, DamagedBytesAreRefusedNotBelieved) {
  Rng rng(2);
  for (int i = 0; i < 20000; ++i) {
    const JournalRecord record = RandomRecord(rng);
    std::string bytes;
    EncodeFields(record, bytes);
    if (rng.Chance(0.5)) bytes.resize(static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size()) + 1)));
    for (int k = 0; k < 3 && !bytes.empty(); ++k) {
      bytes[static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size())))] =
          static_cast<char>(rng.Next());
    }
    const auto back = DecodeFields(KindOf(record), bytes);  // any answer, but no crash and no wild allocation
    EXPECT_TRUE(back.ok() || back.status().code() == StatusCode::kDataLoss);
  }
  EXPECT_EQ(DecodeFields(999, "").status().code(), StatusCode::kDataLoss);
}

TEST(JournalCodecTest, RecordOfAnOlderProgramKeepsDefaultsForNewFields) {
  std::string bytes;
  EncodeFields(record::EndRun{.code = 3, .why = "x"}, bytes);
  const auto back = DecodeFields(KindOf(record::EndRun{}), std::string_view(bytes).substr(0, 4));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<record::EndRun>(*back).code, 3);
  EXPECT_EQ(std::get<record::EndRun>(*back).why, "");
  EXPECT_FALSE(DecodeFields(KindOf(record::EndRun{}), bytes + "y").ok())
      << "a newer program's field is not dropped silently";

  // A FAULT as it was before it had its sample in a field, 16 bytes at its end, and its worker, 8 before
  // that.
  bytes.clear();
  EncodeFields(record::Fault{"worker_lost", "w2", {7}, "killed", {2}, {5, 0, 1}}, bytes);
  for (const size_t less : {16, 24}) {
    const auto fault =
        DecodeFields(KindOf(record::Fault{}), std::string_view(bytes).substr(0, bytes.size() - less));
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(std::get<record::Fault>(*fault).what, "killed");
    EXPECT_EQ(std::get<record::Fault>(*fault).worker.valid(), less == 16);
    EXPECT_EQ(std::get<record::Fault>(*fault).tid, SampleId());
  }
}

// As `tidepool journal --json` prints it.
std::string Line(const JournalEntry& entry) {
  return JournalEntryToJson(entry).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

TEST(JournalCodecTest, JsonNamesEveryField) {
  const JournalEntry commit{
      .lsn = Lsn{7},
      .ctl_epoch = 2,
      .mono_ns = 1234567890123,
      .record = record::StepCommit{.step = StepNumber{3},
                                   .v = {0, 3},
                                   .digest = 0xfeed,
                                   .rows = {{{5, 0, 1}, {0, 2}, 0xbeef, 4}, {{5, 0, 2}, {0, 1}}},
                                   .held_out = {{"eval/loss", 0.5}}}};
  EXPECT_EQ(
      JournalEntryToJson(commit).dump(),
      R"({"lsn":7,"ctl_epoch":2,"mono_ns":1234567890123,"kind":"STEP_COMMIT","step":3,"v":{"lineage":0,"number":3},)"
      R"("digest":"0x000000000000feed","rows":[{"tid":{"ordinal":5,"issue":0,"sample":1},"oldest":{"lineage":0,"number":2},"digest":"0x000000000000beef","masked":4},)"
      R"({"tid":{"ordinal":5,"issue":0,"sample":2},"oldest":{"lineage":0,"number":1},"digest":"0x0000000000000000","masked":0}],"held_out":{"eval/loss":0.5},"replay":"0x0000000000000000"})");
  const JournalEntry fault{
      .record = record::Fault{
          .kind = "oom", .actor = "actor/0", .inc = {4}, .what = "say \"no\"\n\xff", .worker = {2}}};
  const auto parsed = nlohmann::json::parse(Line(fault));
  EXPECT_EQ(parsed["kind"], "FAULT");
  EXPECT_EQ(parsed["class"], "oom");
  EXPECT_EQ(parsed["w"], 2);
  EXPECT_EQ(parsed["what"], "say \"no\"\n\xEF\xBF\xBD");
  const JournalEntry start{.record = record::Start{.tid = {1, 0, 2}, .worker = {{2}, {7}}, .wv = {0, 4}}};
  const auto start_json = JournalEntryToJson(start);
  EXPECT_EQ(start_json["w"], 2);
  EXPECT_EQ(start_json["inc"], 7);
  const JournalEntry graded{.record =
                                record::Graded{.reward = 0.5, .rewards = {{"exact", 1.0}, {"format", 0.25}}}};
  EXPECT_EQ(JournalEntryToJson(graded)["rewards"]["format"], 0.25);
}

TEST(JournalCodecTest, JsonOfRandomRecordsParses) {
  Rng rng(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = Line({.lsn = Lsn{i}, .record = RandomRecord(rng)});
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(JournalTest, RecordsComeBackInOrderWithTheirEnvelope) {
  MemoryFileSystem fs;
  Rng rng(4);
  std::vector<std::string> written;
  {
    auto writer = MustOpen(fs);
    EXPECT_EQ(writer->ctl_epoch(), 1U);
    for (int i = 0; i < 500; ++i) {
      const JournalRecord record = RandomRecord(rng);
      written.push_back(Bytes(record));
      EXPECT_EQ(writer->Append(record, static_cast<uint64_t>(1000 + i)), Lsn{i});
      ASSERT_TRUE(i % 37 != 0 || writer->Sync().ok());
    }
    ASSERT_TRUE(writer->Close().ok());
    EXPECT_EQ(writer->durable_lsn(), Lsn{500});
  }
  const JournalContents contents = MustRead(fs);
  EXPECT_EQ(contents.summary.run_id, "run-1");
  EXPECT_FALSE(contents.summary.torn_tail.has_value());
  ASSERT_EQ(contents.entries.size(), 500U);
  for (size_t i = 0; i < 500; ++i) {
    EXPECT_EQ(contents.entries[i].lsn, Lsn{static_cast<int64_t>(i)});
    EXPECT_EQ(contents.entries[i].mono_ns, 1000 + i);
    EXPECT_EQ(contents.entries[i].ctl_epoch, 1U);
    EXPECT_EQ(Bytes(contents.entries[i].record), written[i]);
  }
}

TEST(JournalTest, EachLifeRaisesTheEpochAndGoesOn) {
  MemoryFileSystem fs;
  for (uint32_t life = 1; life <= 3; ++life) {
    JournalContents earlier;
    auto writer = MustOpen(fs, {}, &earlier);
    EXPECT_EQ(writer->ctl_epoch(), life);
    EXPECT_EQ(earlier.entries.size(), life - 1);
    EXPECT_EQ(writer->Append(record::Snapshot{.state_digest = life}, 0), Lsn{life - 1});
    ASSERT_TRUE(writer->Sync().ok());
    writer.reset();
    fs.Kill();
  }
  const JournalContents contents = MustRead(fs);
  EXPECT_EQ(contents.entries[2].ctl_epoch, 3U);
  EXPECT_EQ(std::get<record::Snapshot>(contents.entries[2].record).state_digest, 3U);
}

TEST(JournalTest, SecondControllerIsRefusedNamingThePid) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs);
  const auto second = JournalWriter::Open(fs, kDir, "run-1");
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("pid " + std::to_string(::getpid())));
  EXPECT_TRUE(ReadJournal(fs, kDir).ok()) << "reading needs no lock";
}

TEST(JournalTest, OtherRunAndOtherSchemaAreRefused) {
  MemoryFileSystem fs;
  MustOpen(fs).reset();
  const auto other = JournalWriter::Open(fs, kDir, "run-2");
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("run-1"));
  EXPECT_THAT(other.status().message(), HasSubstr("run-2"));
  EXPECT_EQ(JournalWriter::Open(fs, kDir, "").value()->run_id(), "run-1");
  EXPECT_EQ(JournalWriter::Open(fs, "new", "").status().code(), StatusCode::kInvalidArgument);

  MemoryFileSystem newer;
  ASSERT_TRUE(newer.MakeDirectories(kDir).ok());
  std::string header = EncodeHeader({.run_id = "run-1"});
  header[8] = 9;
  header.resize(header.size() - 4);
  const uint32_t crc = Crc32c(header);
  header.append(reinterpret_cast<const char*>(&crc), 4);
  ASSERT_TRUE(newer.WriteFile(JoinPath(kDir, "0000.tpj"), header).ok());
  EXPECT_THAT(ReadJournal(newer, kDir).status().ToString(),
              HasSubstr("FAILED_PRECONDITION: run/journal/0000.tpj: journal schema 9"));
  EXPECT_EQ(ReadJournal(newer, "none").status().code(), StatusCode::kNotFound);
}

TEST(JournalTest, SegmentsRollOverAndChain) {
  MemoryFileSystem fs;
  {
    auto writer = MustOpen(fs, {.segment_bytes = 2000});
    for (int i = 0; i < 300; ++i) {
      writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
      ASSERT_TRUE(i % 3 != 2 || writer->Flush().ok());
    }
    ASSERT_TRUE(writer->Sync().ok());
  }
  JournalContents contents = MustRead(fs);
  EXPECT_GT(contents.summary.segments, 5);
  ASSERT_EQ(contents.entries.size(), 300U);

  // A segment that was exchanged for one of the same shape is found out by the hash in its successor.
  ASSERT_TRUE(fs.RemoveFile("run/journal/0003.tpj").ok());
  EXPECT_THAT(ReadJournal(fs, kDir).status().ToString(), HasSubstr("0003.tpj: this segment is missing"));
}

TEST(JournalTest, CorruptionNamesFileAndRecord) {
  const auto write = [](MemoryFileSystem& fs) {
    auto writer = MustOpen(fs, {.segment_bytes = 1000});
    for (int i = 0; i < 100; ++i) {
      writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
      ASSERT_TRUE(writer->Sync().ok());
    }
  };
  Rng rng(5);
  int torn = 0;
  for (int i = 0; i < 300; ++i) {
    MemoryFileSystem fs;
    write(fs);
    const int64_t segments = MustRead(fs).summary.segments;
    const std::string file = JoinPath(kDir, SegmentName(rng.Below(segments)));
    fs.FlipByte(file, rng.Below(*fs.Size(file)), static_cast<uint8_t>(1U << rng.Below(8)));
    const auto read = ReadJournal(fs, kDir, "run-1");
    if (read.ok()) {
      // Only the very last record, or the header of a segment without records, may look torn.
      ++torn;
      EXPECT_EQ(file, JoinPath(kDir, SegmentName(segments - 1)));
      EXPECT_TRUE(read->summary.torn_tail.has_value());
      EXPECT_GE(read->entries.size(), 99U);
    } else {
      EXPECT_EQ(read.status().code(), StatusCode::kDataLoss) << read.status().ToString();
      EXPECT_THAT(read.status().message(), HasSubstr(".tpj"));
    }
  }
  EXPECT_LT(torn, 30);
}

TEST(JournalTest, TornTailIsReportedAndCutOnce) {
  MemoryFileSystem fs;
  {
    auto writer = MustOpen(fs);
    writer->Append(record::Dup{.tid = {1, 0, 0}}, 0);
    writer->Append(record::Dup{.tid = {2, 0, 0}}, 0);
    ASSERT_TRUE(writer->Sync().ok());
  }
  auto file = fs.OpenForAppend("run/journal/0000.tpj");
  const int64_t size = (*file)->size();
  ASSERT_TRUE((*file)->Append(std::string("\x30\0\0\0torn", 8)).ok());
  JournalContents contents = MustRead(fs);
  ASSERT_TRUE(contents.summary.torn_tail.has_value());
  EXPECT_EQ(contents.summary.torn_tail->offset, size);
  EXPECT_EQ(contents.summary.torn_tail->bytes, 8);
  EXPECT_EQ(contents.entries.size(), 2U);

  JournalContents earlier;
  MustOpen(fs, {}, &earlier).reset();
  EXPECT_TRUE(earlier.summary.torn_tail.has_value()) << "told to the caller, for the log";
  EXPECT_FALSE(MustRead(fs).summary.torn_tail.has_value());
}

TEST(JournalTest, FullDiskKeepsTheBufferForALaterTry) {
  MemoryFileSystem fs(MemoryFaults{.capacity_bytes = 4000});
  auto writer = MustOpen(fs, {.reserve_bytes = 500});
  Status status;
  int appended = 0;
  while (status.ok() && appended < 1000) {
    writer->Append(record::Dup{.tid = {appended++, 0, 0}}, 0);
    status = writer->Sync();
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(writer->space_low());
  EXPECT_EQ(writer->durable_lsn(), Lsn{appended - 1});
  EXPECT_EQ(MustRead(fs).entries.size(), static_cast<size_t>(appended - 1));
  fs.SetFaults({.capacity_bytes = 100000});
  ASSERT_TRUE(writer->Sync().ok());
  EXPECT_EQ(MustRead(fs).entries.size(), static_cast<size_t>(appended));
}

TEST(JournalTest, WarnsBeforeTheDiskIsFull) {
  MemoryFileSystem fs(MemoryFaults{.capacity_bytes = 4000});
  auto writer = MustOpen(fs, {.reserve_bytes = 500});
  while (!writer->space_low()) {
    writer->Append(record::Dup{.tid = {1, 0, 0}}, 0);
    ASSERT_TRUE(writer->Sync().ok()) << "the reserve still takes records when the warning comes";
  }
  writer->Append(record::EndRun{.code = 3, .why = "disk full"}, 0);
  EXPECT_TRUE(writer->Sync().ok());
}

TEST(JournalTest, FailedSyncIsFinal) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs);
  writer->Append(record::Dup{}, 0);
  ASSERT_TRUE(writer->Flush().ok());
  fs.SetFaults({.fail_operation = 0});
  EXPECT_EQ(writer->Sync().code(), StatusCode::kDataLoss);
  writer->Append(record::Dup{}, 0);
  EXPECT_EQ(writer->Sync().code(), StatusCode::kDataLoss)
      << "the kernel may have dropped the bytes: no second chance";
  EXPECT_EQ(writer->durable_lsn(), Lsn{0});
}

// A power cut at every single operation of a writer's life, in several variants of what the disk kept: what
// was durable is there, what is there is a prefix of what was appended, and the next life goes on.
TEST(JournalTest, SurvivesAPowerCutAtEveryOperation) {
  int torn = 0;
  for (int64_t at = 0;; ++at) {
    bool reached = false;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(testing::Message() << "operation " << at << " seed " << seed);
      MemoryFileSystem fs(
          MemoryFaults{.seed = seed * 1000 + static_cast<uint64_t>(at), .crash_at_operation = at});
      std::vector<std::string> appended;
      Lsn durable{0};
      Rng rng(seed);
      for (int life = 0; life < 2 && !fs.crashed(); ++life) {
        auto writer = JournalWriter::Open(fs, kDir, "run-1", {.segment_bytes = 1200, .reserve_bytes = 300});
        if (!writer.ok()) break;
        for (int i = 0; i < 24; ++i) {
          const JournalRecord record = RandomRecord(rng);
          appended.push_back(Bytes(record));
          (*writer)->Append(record, 0);
          if (rng.Chance(0.2)) (void)(*writer)->Flush();
          if (rng.Chance(0.3)) (void)(*writer)->Sync();
          durable = (*writer)->durable_lsn();
        }
        (void)(*writer)->Close();
        durable = std::max(durable, (*writer)->durable_lsn());
      }
      reached = fs.crashed();
      fs.Crash();
      fs.SetFaults({.seed = seed});

      JournalContents earlier;
      auto writer = OpenAndRead(fs, {}, earlier);
      ASSERT_TRUE(writer.ok()) << writer.status().ToString();
      torn += earlier.summary.torn_tail.has_value() ? 1 : 0;
      ASSERT_GE(static_cast<int64_t>(earlier.entries.size()), durable.value);
      ASSERT_LE(earlier.entries.size(), appended.size());
      for (size_t i = 0; i < earlier.entries.size(); ++i)
        ASSERT_EQ(Bytes(earlier.entries[i].record), appended[i]);

      (*writer)->Append(record::EndRun{.code = 0}, 0);
      ASSERT_TRUE((*writer)->Sync().ok());
      ASSERT_EQ(MustRead(fs).entries.size(), earlier.entries.size() + 1);
    }
    if (!reached) break;
    ASSERT_LT(at, 1000);
  }
  EXPECT_GT(torn, 20) << "the faults have to produce torn tails for this test to mean something";
}

// On the real file system, kill -9 at any moment loses nothing that was flushed.
TEST(JournalTest, KilledProcessLosesNothingThatWasFlushed) {
  std::string root = testing::TempDir() + "/tidepool_kill_XXXXXX";
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  RealFileSystem fs;
  const std::string dir = root + "/journal";
  int64_t next = 0;
  for (int life = 1; life <= 8; ++life) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto writer = JournalWriter::Open(fs, dir, "run-1", {.segment_bytes = 20000});
      while (writer.ok()) {
        (*writer)->Append(record::Dup{.tid = {(*writer)->next_lsn().value, 0, 0}}, 0);
        if (!(*writer)->Flush().ok()) break;
        const int64_t flushed = (*writer)->next_lsn().value;
        (void)!::write(told[1], &flushed, sizeof(flushed));
      }
      ::_exit(1);
    }
    ::close(told[1]);
    int64_t flushed = 0;
    for (int i = 0; i < 40 * life; ++i)
      ASSERT_EQ(::read(told[0], &flushed, sizeof(flushed)), sizeof(flushed));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(told[0], &flushed, sizeof(flushed)) == sizeof(flushed)) {
    }
    ::close(told[0]);
    const auto contents = ReadJournal(fs, dir, "run-1");
    ASSERT_TRUE(contents.ok()) << contents.status().ToString();
    EXPECT_EQ(contents->summary.ctl_epoch, static_cast<uint32_t>(life));
    EXPECT_GE(contents->summary.next.value, flushed);
    EXPECT_GT(flushed, next);
    for (const JournalEntry& entry : contents->entries) {
      ASSERT_EQ(std::get<record::Dup>(entry.record).tid.ordinal, entry.lsn.value);
    }
    next = contents->summary.next.value;
  }
  ASSERT_TRUE(fs.RemoveTree(root).ok());
}

StatusOr<std::vector<JournalEntry>> Polled(JournalTail& tail) {
  std::vector<JournalEntry> entries;
  TP_RETURN_IF_ERROR(tail.Poll([&](JournalEntry&& entry) {
    entries.push_back(std::move(entry));
    return OkStatus();
  }));
  return entries;
}

// A controller that froze with the lock, and another that does not wait for it.
TEST(JournalTest, AWriterThatWasTakenOverAcknowledgesNothingAndNothingOfItIsRead) {
  MemoryFileSystem fs;
  auto frozen = MustOpen(fs);
  JournalTail tail(fs, kDir, Lsn{0});
  const auto append = [](JournalWriter& w, int64_t ordinal) {
    w.Append(record::Dup{.tid = {ordinal, 0, 0}}, 0);
  };
  for (int64_t i = 0; i < 3; ++i) append(*frozen, i);
  ASSERT_TRUE(frozen->Sync().ok());
  EXPECT_EQ(Polled(tail)->size(), 3U);
  append(*frozen, 90);  // it was about to write this

  auto next = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_EQ((*next)->ctl_epoch(), 2U);
  append(**next, 3);
  ASSERT_TRUE((*next)->Flush().ok());
  EXPECT_EQ(frozen->Flush().code(), StatusCode::kAborted) << "on the disk, and too late";
  EXPECT_EQ(frozen->Sync().code(), StatusCode::kAborted);
  append(**next, 4);
  ASSERT_TRUE((*next)->Sync().ok());

  const auto ordinals = [](const std::vector<JournalEntry>& entries) {
    std::vector<int64_t> out;
    for (const JournalEntry& e : entries) out.push_back(std::get<record::Dup>(e.record).tid.ordinal);
    return out;
  };
  EXPECT_EQ(ordinals(MustRead(fs).entries), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(ordinals(*Polled(tail)), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(frozen->Close().code(), StatusCode::kAborted);
  EXPECT_EQ(ordinals(MustRead(fs).entries), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  // Two that begin at once: one has the epoch.
  ASSERT_TRUE(JournalWriter::Open(fs, kDir, "run-1", {.take_over = true}).ok());
  EXPECT_EQ((*next)->Flush().ok(), true) << "it has nothing to write";
  append(**next, 5);
  EXPECT_EQ((*next)->Flush().code(), StatusCode::kAborted);
}

// Who takes over reads the journal before it claims it, to see whether it can go on; and then what was
// written meanwhile, and no more.
TEST(JournalTest, WhatWasReadBeforeTheClaimIsNotReadAgain) {
  MemoryFileSystem fs;
  auto before = MustOpen(fs, {.segment_bytes = 400});
  const auto append = [&](JournalWriter& w, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      w.Append(record::Dup{.tid = {i, 0, 0}}, 0);
      ASSERT_TRUE(w.Sync().ok());
    }
  };
  append(*before, 0, 40);
  JournalMark mark;
  std::vector<JournalEntry> read;
  const auto take = [&](JournalEntry&& entry) {
    read.push_back(std::move(entry));
    return OkStatus();
  };
  ASSERT_TRUE(ScanJournal(fs, kDir, "run-1", Lsn{0}, take, &mark).ok());
  EXPECT_EQ(read.size(), 40U);
  EXPECT_EQ(mark.read.value, 40);
  ASSERT_GT(mark.whole.segments, 2);
  append(*before, 40, 60);

  // That it looks at no whole segment again shows where one of them cannot be read any more.
  const std::string second = std::string(kDir) + "/0001.tpj";
  const std::string whole = *fs.ReadFile(second, 1 << 20);
  ASSERT_TRUE(fs.WriteFile(second, "damaged").ok());
  JournalSummary summary;
  auto next = JournalWriter::Open(fs, kDir, "run-1", {.segment_bytes = 400, .take_over = true, .mark = mark},
                                  &summary, take);
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  append(**next, 60, 80);
  ASSERT_TRUE(fs.WriteFile(second, whole).ok());
  EXPECT_EQ((*next)->next_lsn().value, 80);
  const auto is = MustRead(fs).entries;  // which looks at the hashes of all of them
  ASSERT_EQ(is.size(), 80U);
  ASSERT_EQ(read.size(), 60U);
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(Bytes(is[i].record), Bytes(read[i].record));
}

// Another one took over between, and leaves out what the first look has read.
TEST(JournalTest, WhatWasReadAndIsLeftOutSinceIsNotGoneOnFrom) {
  MemoryFileSystem fs;
  auto before = MustOpen(fs);
  const auto append = [](JournalWriter& w, int64_t ordinal) {
    w.Append(record::Dup{.tid = {ordinal, 0, 0}}, 0);
  };
  append(*before, 0);
  ASSERT_TRUE(before->Sync().ok());
  auto other = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(other.ok());
  append(*before, 90);
  EXPECT_EQ(before->Flush().code(), StatusCode::kAborted) << "on the disk, and too late";
  // As a look before the other one's segment was there.
  JournalMark mark;
  const auto take = [](JournalEntry&&) { return OkStatus(); };
  mark.read = Lsn{2};
  for (int64_t i = 1; i < 4; ++i) append(**other, i);
  ASSERT_TRUE((*other)->Sync().ok());
  JournalSummary summary;
  const auto third =
      JournalWriter::Open(fs, kDir, "run-1", {.take_over = true, .mark = mark}, &summary, take);
  EXPECT_EQ(third.status().code(), StatusCode::kAborted) << third.status().ToString();
  EXPECT_THAT(third.status().message(), HasSubstr("start this one again"));
}

// The folder was moved away, or its disk unmounted, between the two looks of a take-over.
TEST(JournalTest, OneThatWasReadAndIsGoneSinceIsNotBegunAnew) {
  for (const bool folder : {true, false}) {
    SCOPED_TRACE(folder ? "with its folder" : "its segments");
    MemoryFileSystem fs;
    auto before = MustOpen(fs);
    before->Append(record::Dup{.tid = {0, 0, 0}}, 0);
    ASSERT_TRUE(before->Sync().ok());
    before.reset();
    JournalMark mark;
    const auto take = [](JournalEntry&&) { return OkStatus(); };
    ASSERT_TRUE(ScanJournal(fs, kDir, "run-1", Lsn{0}, take, &mark).ok());
    const auto names = *fs.List(kDir);
    for (const auto& name : names) ASSERT_TRUE(fs.RemoveFile(std::string(kDir) + "/" + name).ok());
    if (folder) ASSERT_TRUE(fs.RemoveDirectory(kDir).ok());
    JournalSummary summary;
    const auto next =
        JournalWriter::Open(fs, kDir, "run-1", {.take_over = true, .mark = mark}, &summary, take);
    EXPECT_EQ(next.status().code(), StatusCode::kAborted) << next.status().ToString();
    EXPECT_THAT(next.status().message(), HasSubstr("is gone"));
    const auto left = fs.List(kDir);
    EXPECT_TRUE(!left.ok() || left->empty()) << "nothing is begun there";
  }
}

// The lock is the successor's, so that a third one which nobody told to take over is kept out, also once the
// first one has ended.
TEST(JournalTest, WhoTakesOverHasTheLock) {
  MemoryFileSystem fs;
  auto frozen = MustOpen(fs);
  auto next = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_EQ(JournalWriter::Open(fs, kDir, "run-1").status().code(), StatusCode::kFailedPrecondition);
  frozen.reset();
  EXPECT_EQ(JournalWriter::Open(fs, kDir, "run-1").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*next)->StillOurs().ok());
  next->reset();
  EXPECT_TRUE(JournalWriter::Open(fs, kDir, "run-1").ok());
}

// Two take over at a time, and the one that lost takes the lock last.
TEST(JournalTest, WhoHasTheJournalTakesTheLockAgain) {
  MemoryFileSystem fs;
  auto frozen = MustOpen(fs);
  auto next = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(next.ok());
  auto late = fs.TakeLock(std::string(kDir) + "/lock", "one that lost");
  ASSERT_TRUE(late.ok());
  frozen.reset();
  ASSERT_TRUE((*next)->Keep().ok());
  late->reset();
  EXPECT_EQ(JournalWriter::Open(fs, kDir, "run-1").status().code(), StatusCode::kFailedPrecondition);
  // Nor does one that has lost take it from who has won.
  auto third = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(third.ok());
  EXPECT_EQ((*next)->Keep().code(), StatusCode::kAborted);
  next->reset();
  EXPECT_EQ(JournalWriter::Open(fs, kDir, "run-1").status().code(), StatusCode::kFailedPrecondition);
}

// Calls of several threads on one file system, one at a time, in an order that a seed draws.
class Turns {
 public:
  Turns(uint64_t seed, std::set<int> threads) : rng_(seed), running_(std::move(threads)) {}
  void Wait(int thread) {
    const MutexLock lock(mu_);
    waiting_.insert(thread);
    Choose();
    const bool came =
        changed_.WaitFor(mu_, std::chrono::seconds(30), [&]() TP_REQUIRES(mu_) { return turn_ == thread; });
    TP_CHECK(came);
    waiting_.erase(thread);
    turn_ = kNobody;
  }
  void End(int thread) {
    const MutexLock lock(mu_);
    running_.erase(thread);
    Choose();
  }

 private:
  static constexpr int kNobody = -1;
  // Once all that have not ended wait.
  void Choose() TP_REQUIRES(mu_) {
    if (waiting_.empty() || waiting_.size() != running_.size() || turn_ != kNobody) return;
    turn_ = *std::next(waiting_.begin(), rng_.Below(static_cast<int64_t>(waiting_.size())));
    changed_.NotifyAll();
  }
  Mutex mu_;
  Condition changed_;
  Rng rng_ TP_GUARDED_BY(mu_);
  std::set<int> running_ TP_GUARDED_BY(mu_), waiting_ TP_GUARDED_BY(mu_);
  int turn_ TP_GUARDED_BY(mu_) = kNobody;
};

class TurnsFileSystem : public MemoryFileSystem {
 public:
  static inline thread_local int me = -1;  // -1: no thread of `turns`
  Turns* turns = nullptr;

  StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path, FileAccess access) override {
    Wait();
    return MemoryFileSystem::OpenForAppend(path, access);
  }
  StatusOr<std::unique_ptr<WritableFile>> CreateNew(const std::string& path, FileAccess access) override {
    Wait();
    auto file = MemoryFileSystem::CreateNew(path, access);
    Wait();  // while it is empty
    return file;
  }
  StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    Wait();
    return MemoryFileSystem::OpenForRead(path);
  }
  StatusOr<FileInfo> Stat(const std::string& path) override {
    Wait();
    return MemoryFileSystem::Stat(path);
  }
  StatusOr<std::vector<std::string>> List(const std::string& dir) override {
    Wait();
    return MemoryFileSystem::List(dir);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    Wait();
    return MemoryFileSystem::Rename(from, to);
  }
  Status RemoveFile(const std::string& path) override {
    Wait();
    return MemoryFileSystem::RemoveFile(path);
  }
  Status SyncDir(const std::string& dir) override {
    Wait();
    return MemoryFileSystem::SyncDir(dir);
  }
  StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, const std::string& who) override {
    Wait();
    return MemoryFileSystem::Lock(path, who);
  }

 private:
  void Wait() {
    if (me >= 0) turns->Wait(me);
  }
};

// Whatever they get in each other's way, one goes on, and what it has read is what the journal says. The one
// before may have ended, or be alive and begin a segment just then.
TEST(JournalTest, OfTwoThatTakeOverAtOnceOneGoesOn) {
  for (const bool lives : {false, true}) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (lives ? ", the one before lives" : ""));
      TurnsFileSystem fs;
      auto before = MustOpen(fs);
      before->Append(record::Dup{.tid = {0, 0, 0}}, 0);
      ASSERT_TRUE(before->Sync().ok());
      std::set<int> threads = {0, 1};
      if (lives) threads.insert(2);
      Turns turns(seed, threads);
      fs.turns = &turns;
      std::vector<JournalContents> read(2);
      std::vector<StatusOr<std::unique_ptr<JournalWriter>>> opened;
      for (int i = 0; i < 2; ++i) opened.emplace_back(Aborted("not yet"));
      {
        std::vector<std::jthread> all;
        for (const int i : {0, 1}) {
          all.emplace_back([&, i] {
            TurnsFileSystem::me = i;
            opened[i] = OpenAndRead(fs, {.take_over = true}, read[i]);
            turns.End(i);
          });
        }
        if (lives) {
          all.emplace_back([&] {
            TurnsFileSystem::me = 2;
            (void)before->SetBegun(7);
            before->Append(record::Dup{.tid = {1, 0, 0}}, 0);
            (void)before->Sync();  // perhaps it was in time
            turns.End(2);
          });
        }
      }
      const auto goes_on = [](const auto& writer) { return writer.ok() && (*writer)->Keep().ok(); };
      const int winner = goes_on(opened[0]) ? 0 : 1;
      ASSERT_TRUE(goes_on(opened[winner])) << opened[0].status().ToString() << "\n"
                                           << opened[1].status().ToString();
      ASSERT_FALSE(goes_on(opened[1 - winner]));
      JournalWriter& writer = **opened[winner];
      writer.Append(record::Dup{.tid = {2, 0, 0}}, 0);
      ASSERT_TRUE(writer.Sync().ok());
      before.reset();
      opened[1 - winner] = Aborted("");
      EXPECT_EQ(JournalWriter::Open(fs, kDir, "run-1").status().code(), StatusCode::kFailedPrecondition)
          << "the winner has no lock";
      const auto is = MustRead(fs).entries;
      ASSERT_EQ(is.size(), read[winner].entries.size() + 1);
      for (size_t i = 0; i + 1 < is.size(); ++i)
        EXPECT_EQ(Bytes(is[i].record), Bytes(read[winner].entries[i].record));
    }
  }
}

// One that slept begins a segment when it wakes, and its name is taken.
TEST(JournalTest, AWriterThatWasTakenOverBeginsNoSegment) {
  MemoryFileSystem fs;
  auto frozen = MustOpen(fs);
  frozen->Append(record::Dup{}, 0);
  ASSERT_TRUE(frozen->Sync().ok());
  const auto next = JournalWriter::Open(fs, kDir, "run-1", {.take_over = true});
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(frozen->SetBegun(7).ok());
  frozen->Append(record::Dup{}, 0);
  EXPECT_EQ(frozen->Flush().code(), StatusCode::kAborted);
  EXPECT_EQ(MustRead(fs).entries.size(), 1U);
}

TEST(JournalTailTest, FollowsAWriterOverSegmentsAndLives) {
  MemoryFileSystem fs;
  JournalTail tail(fs, kDir, Lsn{2});
  EXPECT_EQ(Polled(tail).status().code(), StatusCode::kNotFound);
  std::vector<int64_t> seen;
  const auto poll = [&] {
    auto entries = Polled(tail);
    ASSERT_TRUE(entries.ok()) << entries.status().ToString();
    for (const JournalEntry& entry : *entries) seen.push_back(entry.lsn.value);
  };
  for (int life = 0; life < 2; ++life) {
    auto writer = MustOpen(fs, {.segment_bytes = 300});
    for (int i = 0; i < 20; ++i) {
      writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
      ASSERT_TRUE(writer->Flush().ok());
      if (i % 4 == 0) poll();
    }
  }
  poll();
  ASSERT_EQ(seen.size(), 38U);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int64_t>(i) + 2);

  auto file = fs.OpenForAppend(JoinPath(kDir, SegmentName(MustRead(fs).summary.segments - 1)));
  std::string frame;
  EncodeFrame({.lsn = Lsn{40}, .ctl_epoch = 2, .record = record::Dup{}}, false, frame);
  ASSERT_TRUE((*file)->Append(frame.substr(0, 20)).ok());
  EXPECT_TRUE(Polled(tail)->empty()) << "half a record is left for later";
  ASSERT_TRUE((*file)->Append(frame.substr(20)).ok());
  EXPECT_EQ(Polled(tail)->size(), 1U);
}

TEST(JournalTailTest, HandsOverEachRecordBeforeItDecodesTheNext) {
  MemoryFileSystem fs;
  {
    auto writer = MustOpen(fs, {});
    for (int i = 0; i < 9; ++i) writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
    ASSERT_TRUE(writer->Flush().ok());
  }
  JournalTail tail(fs, kDir, Lsn{0});
  int64_t took = 0;
  const Status polled =
      tail.Poll([&](JournalEntry&&) { return ++took < 3 ? OkStatus() : Internal("enough"); });
  EXPECT_EQ(polled.message(), "enough");
  EXPECT_EQ(took, 3);
}

TEST(JournalTailTest, DamageIsNoRecordThatIsBeingWritten) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs, {});
  for (int i = 0; i < 3; ++i) {
    writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
    ASSERT_TRUE(writer->Sync().ok());
  }
  JournalTail tail(fs, kDir, Lsn{0});
  const std::string file = writer->current_file();
  fs.FlipByte(file, fs.Stat(file)->bytes - 1);
  EXPECT_EQ(Polled(tail)->size(), 2U) << "the last one may come yet";
  fs.FlipByte(file, fs.Stat(file)->bytes - 1);
  EXPECT_EQ(Polled(tail)->size(), 1U);
  std::string frame;
  EncodeFrame({.lsn = Lsn{0}, .record = record::Dup{}}, false, frame);
  JournalTail other(fs, kDir, Lsn{0});
  fs.FlipByte(file, fs.Stat(file)->bytes - static_cast<int64_t>(frame.size()) - 1);
  EXPECT_EQ(Polled(other).status().code(), StatusCode::kDataLoss) << "one that was durable follows";
}

TEST(JournalTailTest, DoesNotGoOnInTheJournalOfAnotherRun) {
  MemoryFileSystem fs;
  const auto write = [&](int64_t begun_unix_ms, int records) {
    auto writer = MustOpen(fs, {.segment_bytes = 300, .begun_unix_ms = begun_unix_ms});
    for (int i = 0; i < records; ++i) writer->Append(record::Dup{.tid = {i, 0, 0}}, 0);
    ASSERT_TRUE(writer->Flush().ok());
  };
  write(1000, 20);
  JournalTail tail(fs, kDir, Lsn{0});
  ASSERT_EQ(Polled(tail)->size(), 20U);
  ASSERT_TRUE(fs.Rename(kDir, std::string(kDir) + ".old").ok());
  EXPECT_EQ(Polled(tail).status().code(), StatusCode::kAborted) << "gone, in the moment between two";
  write(2000, 40);
  EXPECT_EQ(Polled(tail).status().code(), StatusCode::kAborted) << "same name and id, more records";
  JournalTail fresh(fs, kDir, Lsn{0});
  EXPECT_EQ(Polled(fresh)->size(), 40U);
}

TEST(JournalTest, RecordsHaveTheTimeOfDayOfTheirBase) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs, {.begun_unix_ms = 1000});
  JournalTail tail(fs, kDir, Lsn{0});
  const auto append = [&](uint64_t mono_ms) { writer->Append(record::Dup{}, mono_ms * 1'000'000); };
  append(1);
  ASSERT_TRUE(writer->SetBegun(61000).ok());  // it stood still for a minute
  append(2);
  append(3);
  ASSERT_TRUE(writer->Sync().ok());
  ASSERT_TRUE(writer->SetBegun(500).ok());  // the clock was set back
  ASSERT_TRUE(writer->SetBegun(600).ok());
  append(4);
  ASSERT_TRUE(writer->Close().ok());
  const auto times = [](const std::vector<JournalEntry>& entries) {
    std::vector<int64_t> times;
    for (const JournalEntry& entry : entries) times.push_back(entry.unix_ms);
    return times;
  };
  const std::vector<int64_t> expected = {1001, 61002, 61003, 604};
  EXPECT_EQ(times(MustRead(fs).entries), expected);
  std::vector<JournalEntry> followed;
  ASSERT_TRUE(tail.Poll([&](JournalEntry&& entry) {
                    followed.push_back(std::move(entry));
                    return OkStatus();
                  })
                  .ok());
  EXPECT_EQ(times(followed), expected);
  JournalContents earlier;
  writer = MustOpen(fs, {.begun_unix_ms = 7000}, &earlier);
  EXPECT_EQ(earlier.entries.size(), 4U) << "a restart reads them all";
  EXPECT_EQ(writer->ctl_epoch(), 2U) << "it is the same life";
}

TEST(JournalTest, ABaseThatComesToAFullDiskIsThatOfTheRecordsAfterIt) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs, {.begun_unix_ms = 1000});
  writer->Append(record::Dup{}, 0);
  ASSERT_TRUE(writer->Sync().ok());
  fs.SetFaults({.capacity_bytes = 0});
  ASSERT_TRUE(writer->SetBegun(61000).ok());
  writer->Append(record::Dup{}, 0);
  EXPECT_EQ(writer->Sync().code(), StatusCode::kResourceExhausted);
  fs.SetFaults({});
  ASSERT_TRUE(writer->Sync().ok());
  const auto contents = MustRead(fs);
  ASSERT_EQ(contents.entries.size(), 2U);
  EXPECT_EQ(contents.entries[1].unix_ms, 61000);
}

TEST(JournalTest, AMillionRecordsAreReadInThreeSeconds) {
  MemoryFileSystem fs;
  auto writer = MustOpen(fs);
  for (int i = 0; i < 250000; ++i) {  // the mix of a run: issue, start, end, graded, enq per sample
    const SampleId tid{i / 8, 0, i % 8};
    writer->Append(record::Issue{.tid = tid}, 0);
    writer->Append(record::Start{.tid = tid}, 0);
    writer->Append(record::Graded{.tid = tid, .rewards = {{"exact_answer", 1.0}}}, 0);
    writer->Append(record::Enq{.tid = tid}, 0);
    ASSERT_TRUE(writer->buffered_bytes() <= 256 << 10 || writer->Flush().ok());
  }
  ASSERT_TRUE(writer->Sync().ok());
  const std::clock_t begin = std::clock();  // of this process: other tests run beside it
  const JournalContents contents = MustRead(fs);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(contents.entries.size(), 1000000U);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 3.0);
#endif
  RecordProperty("seconds", std::to_string(seconds));
}

}  // namespace
}  // namespace tidepool::storage
