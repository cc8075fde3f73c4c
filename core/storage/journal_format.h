#pragma once
// Pieces of the journal's format that its writer and its readers share (see journal.h).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/storage/journal.h"

namespace tidepool::storage {

inline constexpr size_t kRecordPrefixBytes = 8;                // len, crc
inline constexpr size_t kRecordEnvelopeBytes = 8 + 4 + 8 + 2;  // lsn, ctl_epoch, mono_ns, kind
inline constexpr uint32_t kMaxRecordBytes = uint32_t{1} << 30;
inline constexpr uint16_t kAfterSyncBit = 0x8000;

struct SegmentHeader {
  uint64_t segment = 0;
  Lsn first{0};
  uint32_t ctl_epoch = 0;
  uint64_t previous_hash = 0;
  std::string run_id;
  uint32_t schema = kJournalSchema;
  int64_t begun_unix_ms = 0;
};

// Files of a run that grow are numbered: "0007.tpj", payload's "0007.tpp".
std::string NumberedFileName(int64_t number, std::string_view ending);
// Numbers of the files in `dir` that end so, ascending; other names are skipped. kNotFound: no such folder.
StatusOr<std::vector<int64_t>> ListNumberedFiles(FileSystem& fs, const std::string& dir,
                                                 std::string_view ending);
inline constexpr std::string_view kSegmentEnding = ".tpj";
// Claims of the journal, by ctl_epoch; the newest is there alone.
inline constexpr std::string_view kClaimEnding = ".epoch";
inline std::string ClaimName(int64_t epoch) { return NumberedFileName(epoch, kClaimEnding); }
inline std::string SegmentName(int64_t segment) { return NumberedFileName(segment, kSegmentEnding); }

std::string EncodeHeader(const SegmentHeader& header);
// Parses the header at the front of `bytes`; `length` gets its size. kDataLoss: damaged or cut short;
// kFailedPrecondition: another schema. `path` is for messages.
StatusOr<SegmentHeader> ParseHeader(std::string_view bytes, const std::string& path, size_t* length);

// A record's bytes at the front of `bytes`, checksum verified; empty if there is no valid one, then
// `why` says so.
std::string_view ValidFrame(std::string_view bytes, const char** why);
Lsn FrameLsn(std::string_view frame);
uint32_t FrameEpoch(std::string_view frame);
bool FrameAfterSync(std::string_view frame);
// kDataLoss if the fields do not parse.
StatusOr<JournalEntry> DecodeFrame(std::string_view frame, uint32_t schema = kJournalSchema,
                                   int64_t begun_unix_ms = 0);
void EncodeFrame(const JournalEntry& entry, bool after_sync, std::string& out);

}  // namespace tidepool::storage
