#pragma once
// The journal of a run: one checksummed, append-only record of what happened, written by one controller
// at a time. A restart folds it; `tidepool check` proves things from it alone.
//
// Folder `journal/`: segments 0000.tpj, 0001.tpj, ... and `lock`. All numbers little-endian.
//   header   magic "TPJRNL\r\n" | schema u32 | header bytes u32 | segment u64 | first lsn u64 |
//            ctl_epoch u32 | hash of the previous segment u64 (0 for the first) | run id {u32, bytes} |
//            time of day at which mono_ns of this segment's records is 0, milliseconds since 1970 i64 (may be
//            missing: 0, not known) | crc32c u32 of all before
//   record   len u32 | crc32c u32 | lsn u64 | ctl_epoch u32 | mono_ns u64 | kind u16 | fields
//            len counts what follows the crc, the crc covers it. Bit 15 of kind: every byte before
//            this record was durable when it was appended (see below). lsn counts from 0 without gaps.
//   hash     of a segment: h = Hash64(header); for each record h = Hash64(record bytes, h)
// Fields: core/storage/journal_codec.h. A segment belongs to one life of a controller: each Open starts a
// new one with the next ctl_epoch, and a segment is whole and durable before the next is made. One also
// begins where the time of day goes on from another base, because mono_ns stood still.
//
// Damage. In the last segment, bytes that are no valid record are a torn tail (the machine went down while
// they were written): they end the journal, and the next Open cuts them. They are corruption, as
// they are in any other segment, if a later record carries bit 15: then they had been durable. A last file
// with a torn header and no record is a torn tail as a whole. Corruption is kDataLoss, naming file and
// record.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"

namespace tidepool::storage {

// The format of records. Journals from kOldestJournalSchema on are read; a run is continued in the format
// that it was begun in, so only journals of kJournalSchema are written to.
//   3  rows of STEP_COMMIT have digest and masked (payload files have schema 2)
//   2  before that
inline constexpr uint32_t kJournalSchema = 3, kOldestJournalSchema = 2;

// What an interrupted write left at the end.
struct TornTail {
  std::string file;
  int64_t offset = 0;  // where the valid part ends; 0: the whole file goes
  int64_t bytes = 0;
  std::string why;
};

struct JournalSummary {
  std::string run_id;
  uint32_t ctl_epoch = 0;  // of the last segment; 0: no segment yet
  Lsn next{0};             // lsn of the next record
  int64_t segments = 0;
  int64_t bytes = 0;                 // valid ones
  uint32_t schema = kJournalSchema;  // the oldest of its segments
  uint64_t tail_hash = 0;            // of the last segment, as its successor's header will hold it
  std::optional<TornTail> torn_tail;
};

// How far a scan came, for the next one to go on from. Its last segment is read again from its beginning,
// because it may have grown; those before it are whole.
struct JournalMark {
  JournalSummary whole;
  Lsn read{0};
};

struct JournalContents {
  JournalSummary summary;
  std::vector<JournalEntry> entries;
};

// Reads and checks the whole journal in `dir`, and hands each record with lsn >= `from` to `take`, in order;
// an error of `take` ends the scan and is returned. May run while a controller writes: then it sees a
// prefix. `run_id`: which run this has to be; empty: any.
//   kNotFound            no folder, or no segment in it
//   kFailedPrecondition  another schema or another run, both named
//   kDataLoss            corrupt, naming file, offset and record
//   kAborted             what an earlier scan read, `mark`, was left out again by another controller since
// mark: goes on from there, and says there how far it came.
StatusOr<JournalSummary> ScanJournal(FileSystem& fs, const std::string& dir, const std::string& run_id,
                                     Lsn from, const std::function<Status(JournalEntry&&)>& take,
                                     JournalMark* mark = nullptr);
// The format of the journal in `dir`, from its first segment. Errors as ScanJournal.
StatusOr<uint32_t> JournalSchema(FileSystem& fs, const std::string& dir);
StatusOr<JournalContents> ReadJournal(FileSystem& fs, const std::string& dir, const std::string& run_id = "");

// Follows a journal that grows, in this process or another. Not thread-safe.
class JournalTail {
 public:
  JournalTail(FileSystem& fs, std::string dir, Lsn from) : fs_(fs), dir_(std::move(dir)), from_(from) {}
  // Hands `take` what has become readable since the last call: records with lsn >= `from`, in order. A record
  // that is half written is left for a later call. Records read need not be durable yet. An error of `take`
  // ends it and is returned; kNotFound, kFailedPrecondition, kDataLoss as ScanJournal. kAborted: another
  // run's journal has taken the place of the one that was followed, or none.
  Status Poll(const std::function<Status(JournalEntry&&)>& take);

 private:
  Status StillTheSame();
  FileSystem& fs_;
  std::string dir_;
  Lsn from_;
  std::string begin_;  // the header of the first segment, which no other journal has; empty: not read yet
  int64_t segment_ = 0;
  int64_t offset_ = 0;  // 0: the header was not read yet
  uint32_t ctl_epoch_ = 0, schema_ = kJournalSchema;
  int64_t begun_unix_ms_ = 0;
  Lsn next_{0};
};

struct JournalOptions {
  int64_t segment_bytes = int64_t{64}
                          << 20;  // a segment is closed before it grows past this (one larger flush apart)
  int64_t reserve_bytes =
      int64_t{1} << 20;       // kept reserved ahead of the end, so that a full disk is seen early
  int64_t begun_unix_ms = 0;  // the time of day at which mono_ns is 0; 0: it has none
  bool take_over = false;     // although somebody has the lock, which is taken from them
  JournalMark mark;           // what the caller has read of it before
};

// One process writes a journal. A lock keeps others out, but a lock is no proof: file systems of several
// hosts may not have it, and who holds it may be frozen, or on a host that nobody reaches. So who begins to
// write claims the next ctl_epoch by making a file that must not be there (journal/0003.epoch), before it
// reads what is there. A writer looks after every write whether its claim still is the newest. If not, what
// it wrote last is not acknowledged, and readers leave out what stands in a segment behind the place where a
// later epoch goes on.
//
// Not thread-safe: one thread owns it.
class JournalWriter {
 public:
  // Takes the lock, claims the next ctl_epoch, reads and checks what is there, cuts a torn tail and starts a
  // segment, durable on return. Makes `dir` if need be. `run_id` empty: the one of the journal that is there.
  //   kFailedPrecondition  another controller has it open (its pid is named), another run, or a schema
  //                        that this program does not write
  //   kDataLoss            corrupt; nothing but the claim was changed
  //   kInvalidArgument     no run id for a new journal
  //   kAborted             what the caller has read, options.mark, was left out since, or is gone
  //   errors of FileSystem
  static StatusOr<std::unique_ptr<JournalWriter>> Open(FileSystem& fs, const std::string& dir,
                                                       const std::string& run_id,
                                                       const JournalOptions& options = {});
  // The same, with each record behind options.mark handed to `take` as it is read (those of a long run are
  // hundreds of megabytes), and what else was found in `summary`, a torn tail too. An error of `take` is
  // returned. requires `take`, `summary`
  static StatusOr<std::unique_ptr<JournalWriter>> Open(FileSystem& fs, const std::string& dir,
                                                       const std::string& run_id,
                                                       const JournalOptions& options, JournalSummary* summary,
                                                       const std::function<Status(JournalEntry&&)>& take);
  ~JournalWriter();

  // Puts the record into the buffer and returns its place. Nothing is written until Flush or Sync.
  // requires: encoded size < 1 GiB.
  Lsn Append(const JournalRecord& record, uint64_t mono_ns);
  // Hands the buffer to the operating system: safe from the death of this process, not from a power cut.
  // kResourceExhausted (disk full): the buffer is kept and the file is as before, so it may be
  // called again once there is space. Any other error is final: all later calls return it. kAborted: another
  // process has claimed the journal.
  Status Flush();
  // Flush, then waits until everything appended so far is durable. Errors as Flush.
  Status Sync();
  // JournalOptions::begun_unix_ms of the records from here on, which get a segment of their own. What was
  // appended before is flushed: errors as Flush, and then it may go into that segment.
  Status SetBegun(int64_t begun_unix_ms);
  // Sync, then gives reserved space and the lock back. The writer is unusable afterwards.
  Status Close();

  // kAborted: another process has claimed the journal. Any thread, as far as the file system allows it.
  [[nodiscard]] Status StillOurs() const;
  // The same, and takes the lock again where one that lost the journal took it last: two that take over at
  // a time. Called now and then by whoever owns this.
  Status Keep();
  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  [[nodiscard]] uint32_t ctl_epoch() const { return ctl_epoch_; }
  [[nodiscard]] Lsn next_lsn() const { return next_; }
  [[nodiscard]] Lsn durable_lsn() const { return durable_; }  // all records before it are durable
  // The segment that is written now; earlier ones are durable.
  [[nodiscard]] std::string current_file() const;
  [[nodiscard]] int64_t buffered_bytes() const { return static_cast<int64_t>(buffer_.size()); }
  // The disk could not reserve more: what was reserved earlier may still take closing records.
  [[nodiscard]] bool space_low() const { return space_low_; }

 private:
  JournalWriter(FileSystem& fs, std::string dir, JournalOptions options)
      : fs_(fs), dir_(std::move(dir)), options_(options) {}
  Status Claim(const std::vector<int64_t>& segments);
  // Reads what is there from next_ on, and starts the segment behind it. anew: there is nothing.
  // kAlreadyExists, kNotFound: somebody else made or removed a segment meanwhile.
  Status BeginBehind(bool anew, const std::string& run_id, JournalSummary* all,
                     const std::function<Status(JournalEntry&&)>& take);
  Status StartSegment();
  Status WriteBuffer();
  Status Broken(Status status);

  FileSystem& fs_;
  std::string dir_;
  JournalOptions options_;
  std::unique_ptr<FileLock> lock_;  // null: another one that took over had it last, see Keep
  std::unique_ptr<WritableFile> file_;
  std::string run_id_;
  int64_t segment_ = 0;
  uint32_t ctl_epoch_ = 0;
  Lsn next_{0}, durable_{0};
  uint64_t hash_ = 0;  // of the present segment, so far
  std::string buffer_;
  std::vector<size_t> records_;  // end of each record in buffer_
  bool new_base_ = false;        // the next record begins a segment
  bool after_sync_ = true;       // the next record is the first since everything was durable
  int64_t header_bytes_ = 0;     // of the present segment
  int64_t reserved_until_ = 0;
  bool space_low_ = false;
  Status broken_;
};

}  // namespace tidepool::storage
