// Reading: format pieces, whole scans, and following a live journal.

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/base/hash.h"
#include "core/base/little_endian.h"
#include "core/storage/journal.h"
#include "core/storage/journal_codec.h"
#include "core/storage/journal_format.h"

namespace tidepool::storage {
namespace {

constexpr std::string_view kJournalMagic("TPJRNL\r\n", 8);

template <typename T>
T NumberAt(std::string_view bytes, size_t offset) {
  return ByteReader(bytes.substr(offset)).Number<T>();
}

std::string At(const std::string& path, size_t offset, Lsn lsn) {
  return path + ": offset " + std::to_string(offset) + ", record " + std::to_string(lsn.value) + ": ";
}

constexpr const char* kCorruptAdvice =
    "; the journal is corrupt and cannot be trusted: restore it from a copy, or start again with --fresh";

Status CheckRun(const SegmentHeader& header, const std::string& run_id, const std::string& path) {
  if (run_id.empty() || header.run_id == run_id) return OkStatus();
  return FailedPrecondition(path + ": this journal is of run '" + header.run_id + "', expected run '" +
                            run_id + "'; name the right run folder");
}

// Whether a valid record with lsn >= `least` that proves the bad place at the front of `bytes` to have been
// durable follows somewhere behind it. Behind a bad header that is any record (a header is durable
// before records follow), behind a bad record one that was appended after a sync.
bool DurableRecordFollows(std::string_view bytes, Lsn least, bool any_record) {
  for (size_t i = 1; i + kRecordPrefixBytes + kRecordEnvelopeBytes <= bytes.size(); ++i) {
    const std::string_view rest = bytes.substr(i);
    // Cheap checks first: a checksum at every byte of a large tail would take minutes.
    const auto len = NumberAt<uint32_t>(rest, 0);
    if (len < kRecordEnvelopeBytes || len > rest.size() - kRecordPrefixBytes) continue;
    const int64_t lsn = FrameLsn(rest).value;
    if (lsn < least.value || lsn > least.value + static_cast<int64_t>(bytes.size())) continue;
    if (!any_record && !FrameAfterSync(rest)) continue;
    const char* why = nullptr;
    if (!ValidFrame(rest, &why).empty()) return true;
  }
  return false;
}

// Where a later epoch goes on; none: `next` is of the same writer, or is not begun. What stands behind that
// place was written by a process that did not know yet that another had claimed the journal.
std::optional<Lsn> TakenOverAt(FileSystem& fs, const std::string& next, uint32_t ctl_epoch) {
  const auto file = fs.OpenForRead(next);
  if (!file.ok()) return std::nullopt;
  const auto begin = (*file)->ReadAt(0, 1 << 16);
  if (!begin.ok()) return std::nullopt;
  size_t length = 0;
  const auto header = ParseHeader(*begin, next, &length);
  return header.ok() && header->ctl_epoch > ctl_epoch ? std::optional(header->first) : std::nullopt;
}

}  // namespace

std::string NumberedFileName(int64_t number, std::string_view ending) {
  std::string digits = std::to_string(number);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  return digits.append(ending);
}

StatusOr<std::vector<int64_t>> ListNumberedFiles(FileSystem& fs, const std::string& dir,
                                                 std::string_view ending) {
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(dir));
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    int64_t number = -1;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), number).ptr;
    if (number >= 0 && std::string_view(end) == ending) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string EncodeHeader(const SegmentHeader& header) {
  std::string out(kJournalMagic);
  PutNumber(out, kJournalSchema);
  PutNumber(out, static_cast<uint32_t>(kJournalMagic.size() + 4 + 4 + 8 + 8 + 4 + 8 + 4 +
                                       header.run_id.size() + 8 + 4));
  PutNumber(out, header.segment);
  PutNumber(out, static_cast<uint64_t>(header.first.value));
  PutNumber(out, header.ctl_epoch);
  PutNumber(out, header.previous_hash);
  PutString(out, header.run_id);
  PutNumber(out, static_cast<uint64_t>(header.begun_unix_ms));
  PutNumber(out, Crc32c(out));
  return out;
}

StatusOr<SegmentHeader> ParseHeader(std::string_view bytes, const std::string& path, size_t* length) {
  ByteReader reader(bytes);
  const auto damaged = [&](const char* what) {
    return DataLoss(path + ": " + what + "; expected the header of a journal segment");
  };
  if (reader.Bytes(kJournalMagic.size()) != kJournalMagic) return damaged("it does not begin with TPJRNL");
  const auto schema = reader.Number<uint32_t>();
  *length = reader.Number<uint32_t>();
  if (!reader.ok() || *length > bytes.size() || *length < 48) return damaged("the header is cut short");
  if (Crc32c(bytes.substr(0, *length - 4)) != NumberAt<uint32_t>(bytes, *length - 4)) {
    return damaged("the header's checksum is wrong");
  }
  if (schema < kOldestJournalSchema || schema > kJournalSchema) {
    return FailedPrecondition(path + ": journal schema " + std::to_string(schema) + ", this program reads " +
                              std::to_string(kOldestJournalSchema) + " to " + std::to_string(kJournalSchema) +
                              "; use the version of tidepool that wrote the run");
  }
  SegmentHeader header;
  header.schema = schema;
  header.segment = reader.Number<uint64_t>();
  header.first = Lsn{static_cast<int64_t>(reader.Number<uint64_t>())};
  header.ctl_epoch = reader.Number<uint32_t>();
  header.previous_hash = reader.Number<uint64_t>();
  header.run_id = std::string(reader.String());
  if (!reader.ok()) return damaged("the header is cut short");
  if (bytes.size() - reader.left() + 12 <= *length)  // else an older program wrote it
    header.begun_unix_ms = static_cast<int64_t>(reader.Number<uint64_t>());
  return header;
}

std::string_view ValidFrame(std::string_view bytes, const char** why) {
  if (bytes.size() < kRecordPrefixBytes + kRecordEnvelopeBytes) {
    *why = "fewer bytes are left than any record has";
    return {};
  }
  const auto len = NumberAt<uint32_t>(bytes, 0);
  if (len < kRecordEnvelopeBytes || len > kMaxRecordBytes) {
    *why = "the length is impossible";
    return {};
  }
  if (len > bytes.size() - kRecordPrefixBytes) {
    *why = "the record goes on past the end of the file";
    return {};
  }
  if (Crc32c(bytes.substr(kRecordPrefixBytes, len)) != NumberAt<uint32_t>(bytes, 4)) {
    *why = "the checksum is wrong";
    return {};
  }
  return bytes.substr(0, kRecordPrefixBytes + len);
}

Lsn FrameLsn(std::string_view frame) { return Lsn{static_cast<int64_t>(NumberAt<uint64_t>(frame, 8))}; }
uint32_t FrameEpoch(std::string_view frame) { return NumberAt<uint32_t>(frame, 16); }
bool FrameAfterSync(std::string_view frame) { return (NumberAt<uint16_t>(frame, 28) & kAfterSyncBit) != 0; }

StatusOr<JournalEntry> DecodeFrame(std::string_view frame, uint32_t schema, int64_t begun_unix_ms) {
  const auto kind = static_cast<uint16_t>(NumberAt<uint16_t>(frame, 28) & ~kAfterSyncBit);
  auto record = DecodeFields(kind, frame.substr(kRecordPrefixBytes + kRecordEnvelopeBytes), schema);
  if (!record.ok()) return record.status();
  const auto mono_ns = NumberAt<uint64_t>(frame, 20);
  return JournalEntry{
      .lsn = FrameLsn(frame),
      .ctl_epoch = FrameEpoch(frame),
      .mono_ns = mono_ns,
      .record = std::move(record).value(),
      .unix_ms = begun_unix_ms == 0 ? 0 : begun_unix_ms + static_cast<int64_t>(mono_ns / 1'000'000)};
}

void EncodeFrame(const JournalEntry& entry, bool after_sync, std::string& out) {
  const size_t begin = out.size();
  out.append(kRecordPrefixBytes, '\0');
  PutNumber(out, static_cast<uint64_t>(entry.lsn.value));
  PutNumber(out, entry.ctl_epoch);
  PutNumber(out, entry.mono_ns);
  PutNumber(out, static_cast<uint16_t>(KindOf(entry.record) | (after_sync ? kAfterSyncBit : 0)));
  EncodeFields(entry.record, out);
  const size_t len = out.size() - begin - kRecordPrefixBytes;
  TP_CHECK(len < kMaxRecordBytes) << RecordName(entry.record) << " of " << len << " bytes";
  std::string prefix;
  PutNumber(prefix, static_cast<uint32_t>(len));
  PutNumber(prefix, Crc32c(std::string_view(out).substr(begin + kRecordPrefixBytes)));
  out.replace(begin, kRecordPrefixBytes, prefix);
}

StatusOr<JournalSummary> ScanJournal(FileSystem& fs, const std::string& dir, const std::string& run_id,
                                     Lsn from, const std::function<Status(JournalEntry&&)>& take,
                                     JournalMark* mark) {
  TP_ASSIGN_OR_RETURN(const auto segments, ListNumberedFiles(fs, dir, kSegmentEnding));
  if (segments.empty())
    return NotFound(dir + ": there is no journal segment (*.tpj) here; name the folder of a run");
  JournalSummary summary = mark == nullptr ? JournalSummary() : mark->whole;
  const int64_t read_before = summary.segments;
  const Lsn read = mark == nullptr ? Lsn{0} : mark->read;
  uint64_t hash = summary.tail_hash;
  for (size_t index = 0; index < segments.size(); ++index) {
    const std::string path = JoinPath(dir, SegmentName(segments[index]));
    const bool last = index + 1 == segments.size();
    if (segments[index] != static_cast<int64_t>(index)) {
      return DataLoss(JoinPath(dir, SegmentName(static_cast<int64_t>(index))) +
                      ": this segment is missing, " + SegmentName(segments[index]) + " is there" +
                      kCorruptAdvice);
    }
    if (static_cast<int64_t>(index) < read_before) continue;
    if (last && mark != nullptr) {
      mark->whole = summary;
      mark->whole.tail_hash = hash;
    }
    TP_ASSIGN_OR_RETURN(const std::string bytes, fs.ReadFile(path, int64_t{4} << 30));
    size_t offset = 0;
    auto header = ParseHeader(bytes, path, &offset);
    if (!header.ok()) {
      if (header.status().code() != StatusCode::kDataLoss) return header.status();
      if (!last || DurableRecordFollows(bytes, summary.next, /*any_record=*/true)) {
        return DataLoss(header.status().message() + kCorruptAdvice);
      }
      summary.torn_tail = TornTail{path, 0, static_cast<int64_t>(bytes.size()), header.status().message()};
      break;
    }
    TP_RETURN_IF_ERROR(CheckRun(*header, run_id.empty() ? summary.run_id : run_id, path));
    if (header->segment != index || header->first != summary.next || header->previous_hash != hash ||
        header->ctl_epoch < summary.ctl_epoch) {
      return DataLoss(
          path + ": the header (segment " + std::to_string(header->segment) + ", first record " +
          std::to_string(header->first.value) + ", ctl_epoch " + std::to_string(header->ctl_epoch) +
          ") does not continue the segment before it, which ends before record " +
          std::to_string(summary.next.value) + " at ctl_epoch " + std::to_string(summary.ctl_epoch) +
          (header->previous_hash != hash ? "; its hash differs from the one noted here" : "") +
          kCorruptAdvice);
    }
    if (mark != nullptr && static_cast<int64_t>(index) > read_before && header->first < read)
      return Aborted(path + ": begins before record " + std::to_string(read.value) +
                     ", where this controller goes on: another one has taken over this run at the same time; "
                     "start this one again");
    summary.run_id = header->run_id;
    summary.ctl_epoch = header->ctl_epoch;
    summary.schema = std::min(summary.schema, header->schema);
    hash = Hash64(std::string_view(bytes).substr(0, offset));
    const std::optional<Lsn> end =
        last ? std::nullopt
             : TakenOverAt(fs, JoinPath(dir, SegmentName(segments[index + 1])), header->ctl_epoch);
    while (offset < bytes.size() && end != summary.next) {
      const std::string_view rest = std::string_view(bytes).substr(offset);
      const char* why = nullptr;
      const std::string_view frame = ValidFrame(rest, &why);
      if (frame.empty()) {
        if (!last || DurableRecordFollows(rest, Lsn{summary.next.value + 1}, /*any_record=*/false)) {
          return DataLoss(At(path, offset, summary.next) + why + kCorruptAdvice);
        }
        summary.torn_tail =
            TornTail{path, static_cast<int64_t>(offset), static_cast<int64_t>(rest.size()), why};
        break;
      }
      if (FrameLsn(frame) != summary.next || FrameEpoch(frame) != header->ctl_epoch) {
        return DataLoss(At(path, offset, summary.next) + "found record " +
                        std::to_string(FrameLsn(frame).value) + " of ctl_epoch " +
                        std::to_string(FrameEpoch(frame)) + kCorruptAdvice);
      }
      if (FrameLsn(frame) >= from) {
        auto entry = DecodeFrame(frame, header->schema, header->begun_unix_ms);
        if (!entry.ok()) return entry.status().At(At(path, offset, summary.next));
        TP_RETURN_IF_ERROR(take(std::move(entry).value()));
      }
      hash = Hash64(frame, hash);
      offset += frame.size();
      ++summary.next.value;
    }
    ++summary.segments;
    summary.bytes += static_cast<int64_t>(offset);
  }
  summary.tail_hash = hash;
  if (mark != nullptr) mark->read = summary.next;
  return summary;
}

StatusOr<uint32_t> JournalSchema(FileSystem& fs, const std::string& dir) {
  const std::string path = JoinPath(dir, SegmentName(0));
  TP_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  TP_ASSIGN_OR_RETURN(const std::string bytes, file->ReadAt(0, 1 << 16));
  size_t length = 0;
  TP_ASSIGN_OR_RETURN(const SegmentHeader header, ParseHeader(bytes, path, &length));
  return header.schema;
}

StatusOr<JournalContents> ReadJournal(FileSystem& fs, const std::string& dir, const std::string& run_id) {
  JournalContents contents;
  TP_ASSIGN_OR_RETURN(contents.summary, ScanJournal(fs, dir, run_id, Lsn{0}, [&](JournalEntry&& entry) {
                        contents.entries.push_back(std::move(entry));
                        return OkStatus();
                      }));
  return contents;
}

Status JournalTail::StillTheSame() {
  if (begin_.empty()) return OkStatus();
  const std::string path = JoinPath(dir_, SegmentName(0));
  const auto file = fs_.OpenForRead(path);
  if (file.status().code() == StatusCode::kNotFound) return Aborted(path + ": is gone");
  TP_RETURN_IF_ERROR(file.status());
  TP_ASSIGN_OR_RETURN(const std::string now, (*file)->ReadAt(0, static_cast<int64_t>(begin_.size())));
  return now == begin_ ? OkStatus() : Aborted(path + ": is of another run now");
}

Status JournalTail::Poll(const std::function<Status(JournalEntry&&)>& take) {
  while (true) {
    const std::string path = JoinPath(dir_, SegmentName(segment_));
    // Looked for before reading: if it was there, the segment before it is complete.
    const bool next_exists = fs_.Exists(JoinPath(dir_, SegmentName(segment_ + 1)));
    const auto file = fs_.OpenForRead(path);
    std::string bytes;
    if (file.ok()) {
      TP_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
      TP_ASSIGN_OR_RETURN(bytes, (*file)->ReadAt(offset_, std::max<int64_t>(size - offset_, 0)));
    }
    // Looked at after reading: then what was read is of the same run.
    TP_RETURN_IF_ERROR(StillTheSame());
    TP_RETURN_IF_ERROR(file.status());
    std::string_view rest = bytes;
    if (offset_ == 0) {
      size_t length = 0;
      const auto header = ParseHeader(rest, path, &length);
      if (!header.ok()) {
        // Not yet written in full; whoever made it is at it, or died and its successor will replace it.
        if (header.status().code() == StatusCode::kDataLoss && !next_exists) return OkStatus();
        return header.status();
      }
      offset_ = static_cast<int64_t>(length);
      ctl_epoch_ = header->ctl_epoch;
      schema_ = header->schema;
      begun_unix_ms_ = header->begun_unix_ms;
      // What was handed out last was written by a process that had been overtaken.
      if (header->first < next_)
        return Aborted(path + ": goes on before the last record that was read; read it anew");
      next_ = header->first;
      if (segment_ == 0) begin_ = rest.substr(0, length);
      rest.remove_prefix(length);
    }
    const std::optional<Lsn> end =
        next_exists ? TakenOverAt(fs_, JoinPath(dir_, SegmentName(segment_ + 1)), ctl_epoch_) : std::nullopt;
    const char* why = nullptr;
    while (!rest.empty() && !(end && next_ >= *end)) {
      const std::string_view frame = ValidFrame(rest, &why);
      if (frame.empty()) break;
      if (FrameLsn(frame) != next_ || FrameEpoch(frame) != ctl_epoch_) {
        return DataLoss(At(path, static_cast<size_t>(offset_), next_) + "found record " +
                        std::to_string(FrameLsn(frame).value) + kCorruptAdvice);
      }
      if (next_ >= from_) {
        auto entry = DecodeFrame(frame, schema_, begun_unix_ms_);
        if (!entry.ok()) return entry.status().At(At(path, static_cast<size_t>(offset_), next_));
        TP_RETURN_IF_ERROR(take(std::move(entry).value()));
      }
      rest.remove_prefix(frame.size());
      offset_ += static_cast<int64_t>(frame.size());
      ++next_.value;
    }
    // Half a record is being written, or was left by a machine that went down; but not where more follows.
    if (!next_exists && !DurableRecordFollows(rest, Lsn{next_.value + 1}, /*any_record=*/false))
      return OkStatus();
    if (!rest.empty() && !end)
      return DataLoss(At(path, static_cast<size_t>(offset_), next_) + why + kCorruptAdvice);
    ++segment_;
    offset_ = 0;
  }
}

}  // namespace tidepool::storage
