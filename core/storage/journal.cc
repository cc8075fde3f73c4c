// Writing. For reading see journal_scan.cc.

#include "core/storage/journal.h"

#include <algorithm>
#include <utility>

#include "core/base/hash.h"
#include "core/storage/journal_format.h"
#include "core/storage/run_directory.h"

namespace tidepool::storage {
namespace {

// A torn tail is cut before anything is written behind it, durably.
Status CutTornTail(FileSystem& fs, const std::string& dir, const TornTail& torn) {
  if (torn.offset == 0) {
    TP_RETURN_IF_ERROR(fs.RemoveFile(torn.file));
    return fs.SyncDir(dir);
  }
  TP_ASSIGN_OR_RETURN(const auto file, fs.OpenForAppend(torn.file));
  TP_RETURN_IF_ERROR(file->Truncate(torn.offset));
  return file->Sync();
}

// What somebody else makes or removes at the same time.
bool IsRivals(const Status& error) {
  return error.code() == StatusCode::kAlreadyExists || error.code() == StatusCode::kNotFound;
}

}  // namespace

StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(FileSystem& fs, const std::string& dir,
                                                             const std::string& run_id,
                                                             const JournalOptions& options) {
  JournalSummary earlier;
  return Open(fs, dir, run_id, options, &earlier, [](JournalEntry&&) { return OkStatus(); });
}

StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(
    FileSystem& fs, const std::string& dir, const std::string& run_id, const JournalOptions& options,
    JournalSummary* summary_out, const std::function<Status(JournalEntry&&)>& take) {
  const auto vanished = [&] {
    return Aborted(dir + ": this journal was there a moment ago, with " +
                   std::to_string(options.mark.read.value) +
                   " records, and is gone; nothing was begun in its place. If the run's folder was moved or "
                   "its disk was unmounted, bring it back and start this one again");
  };
  if (options.mark.read.value > 0) {  // before anything is made here
    const auto there = ListNumberedFiles(fs, dir, kSegmentEnding);
    if (there.status().code() == StatusCode::kNotFound || (there.ok() && there->empty())) return vanished();
  }
  TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
  std::unique_ptr<JournalWriter> writer(new JournalWriter(fs, dir, options));
  writer->next_ = options.mark.read;
  auto lock = fs.Lock(JoinPath(dir, "lock"), ThisProcess());
  if (lock.ok()) {
    writer->lock_ = *std::move(lock);
  } else if (!options.take_over || lock.status().code() != StatusCode::kFailedPrecondition) {
    return lock.status();
  }

  JournalSummary summary;
  TP_ASSIGN_OR_RETURN(const auto segments, ListNumberedFiles(fs, dir, kSegmentEnding));
  if (segments.empty() && options.mark.read.value > 0) return vanished();
  // Without a whole header there is nothing to go on with; the scan says what it is then.
  if (const auto schema = segments.empty() ? StatusOr<uint32_t>(kJournalSchema) : JournalSchema(fs, dir);
      schema.ok() && *schema != kJournalSchema) {
    return FailedPrecondition(dir + ": this journal has schema " + std::to_string(*schema) +
                              ", and this program continues runs of schema " +
                              std::to_string(kJournalSchema) +
                              " only; continue the run with the version of tidepool that began it (check, "
                              "report, samples, journal and export read it here)");
  }
  TP_RETURN_IF_ERROR(writer->Claim(segments));
  // From whoever holds it and has just lost the run. Or else the lock would be free once that one ends, and a
  // third controller could begin that nobody told to take over.
  if (writer->lock_ == nullptr) {
    TP_RETURN_IF_ERROR(writer->StillOurs());
    auto taken = fs.TakeLock(JoinPath(dir, "lock"), ThisProcess());
    // Another one that takes over may be at it just now, and lost the run by our claim: Keep takes it later.
    if (!taken.ok() && taken.status().code() != StatusCode::kFailedPrecondition && !IsRivals(taken.status()))
      return taken.status();
    if (taken.ok()) writer->lock_ = *std::move(taken);
  }
  // Whoever lost the journal by our claim may begin a segment, or remove one that it takes for torn, while
  // this one reads. It does so once, and then learns that it has lost, so this one looks again.
  constexpr int kMostRivals = 8;
  const bool anew = segments.empty();
  Status begun = writer->BeginBehind(anew, run_id, &summary, take);
  for (int rivals = 0; rivals < kMostRivals; ++rivals) {
    if (!IsRivals(begun)) break;
    TP_RETURN_IF_ERROR(writer->StillOurs());
    begun = writer->BeginBehind(/*anew=*/false, run_id, &summary, take);
  }
  TP_RETURN_IF_ERROR(begun);
  TP_RETURN_IF_ERROR(writer->Keep());
  *summary_out = std::move(summary);
  return writer;
}

Status JournalWriter::BeginBehind(bool anew, const std::string& run_id, JournalSummary* all,
                                  const std::function<Status(JournalEntry&&)>& take) {
  JournalSummary summary;
  if (!anew) {
    // Only after the claim: whoever had the journal before may have written up to it.
    JournalMark mark = options_.mark;
    TP_ASSIGN_OR_RETURN(summary, ScanJournal(
                                     fs_, dir_, run_id, next_,
                                     [&](JournalEntry&& entry) {
                                       next_ = Lsn{entry.lsn.value + 1};
                                       return take(std::move(entry));
                                     },
                                     &mark));
    if (summary.next < next_)
      return Aborted(dir_ +
                     ": what was read of it was left out again, by another controller that goes on with this "
                     "run at the same time; start this one again");
  }
  // What looks torn may be what a successor has just begun.
  TP_RETURN_IF_ERROR(StillOurs());
  if (summary.torn_tail.has_value()) {
    TP_RETURN_IF_ERROR(CutTornTail(fs_, dir_, *summary.torn_tail));
  } else if (summary.segments > 0) {
    // A reader sees what the system has; a successor must not build on what a power cut may still take.
    TP_ASSIGN_OR_RETURN(const auto file,
                        fs_.OpenForAppend(JoinPath(dir_, SegmentName(summary.segments - 1))));
    TP_RETURN_IF_ERROR(file->Truncate(file->size()));  // space that a killed writer had reserved
    TP_RETURN_IF_ERROR(file->Sync());
    TP_RETURN_IF_ERROR(fs_.SyncDir(dir_));
  }
  run_id_ = run_id.empty() ? summary.run_id : run_id;
  if (run_id_.empty()) return InvalidArgument(dir_ + ": a new journal needs a run id");
  segment_ = summary.segments - 1;
  next_ = durable_ = summary.next;
  hash_ = summary.tail_hash;
  if (!summary.torn_tail) summary.torn_tail = std::move(all->torn_tail);  // of the first look
  *all = std::move(summary);
  return StartSegment();
}

Status JournalWriter::Keep() {
  TP_RETURN_IF_ERROR(StillOurs());
  const std::string path = JoinPath(dir_, "lock");
  if (file_ == nullptr || (lock_ != nullptr && lock_->IsAt(path))) return OkStatus();
  // The folder may have been moved, and another run's may have its place.
  const auto claim = fs_.ReadFile(JoinPath(dir_, ClaimName(ctl_epoch_)), 1 << 16);
  if (!claim.ok() || *claim != ThisProcess() + "\n") return OkStatus();
  auto taken = fs_.TakeLock(path, ThisProcess());
  if (taken.ok()) lock_ = *std::move(taken);  // else at the next call
  return OkStatus();
}

JournalWriter::~JournalWriter() = default;

Status JournalWriter::Claim(const std::vector<int64_t>& segments) {
  TP_ASSIGN_OR_RETURN(const auto claims, ListNumberedFiles(fs_, dir_, kClaimEnding));
  int64_t newest = claims.empty() ? 0 : claims.back();
  // A journal of an older program has none. The newest segment may be one that was never begun.
  for (size_t i = segments.size(); i > 0 && i + 2 > segments.size(); --i) {
    const std::string path = JoinPath(dir_, SegmentName(segments[i - 1]));
    TP_ASSIGN_OR_RETURN(const auto file, fs_.OpenForRead(path));
    TP_ASSIGN_OR_RETURN(const std::string begin, file->ReadAt(0, 1 << 16));
    size_t length = 0;
    if (const auto header = ParseHeader(begin, path, &length); header.ok())
      newest = std::max<int64_t>(newest, header->ctl_epoch);
  }
  const std::string path = JoinPath(dir_, ClaimName(newest + 1));
  const auto claim = [&]() -> Status {
    auto made = fs_.CreateNew(path);
    if (made.status().code() == StatusCode::kAlreadyExists)
      return FailedPrecondition(dir_ + ": another controller began to go on with this run at the same time");
    TP_ASSIGN_OR_RETURN(auto file, std::move(made));
    TP_RETURN_IF_ERROR(file->Append(ThisProcess() + "\n"));
    TP_RETURN_IF_ERROR(file->Sync());
    return fs_.SyncDir(dir_);
  };
  TP_RETURN_IF_ERROR(claim());
  ctl_epoch_ = static_cast<uint32_t>(newest + 1);
  // The name may be free because others claimed it, and later ones, and removed it since the list was read.
  TP_ASSIGN_OR_RETURN(const auto now, ListNumberedFiles(fs_, dir_, kClaimEnding));
  if (!now.empty() && now.back() > newest + 1) return StillOurs();
  for (const int64_t old : claims) {
    const Status removed = fs_.RemoveFile(JoinPath(dir_, ClaimName(old)));
    if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;  // else another one did
  }
  return OkStatus();
}

Status JournalWriter::StillOurs() const {
  const int64_t epoch = ctl_epoch_;
  const auto there = [&](int64_t claim) { return fs_.Exists(JoinPath(dir_, ClaimName(claim))); };
  if (there(epoch) && !there(epoch + 1)) return OkStatus();
  const auto claims = ListNumberedFiles(fs_, dir_, kClaimEnding);
  // Where all of the folder is gone nobody has claimed it.
  if (claims.status().code() == StatusCode::kNotFound) return OkStatus();
  TP_RETURN_IF_ERROR(claims.status());
  if (claims->empty() || claims->back() <= epoch) return OkStatus();
  return Aborted(dir_ + ": another controller has claimed it since this one (ctl_epoch " +
                 std::to_string(epoch) + ") did");
}

std::string JournalWriter::current_file() const { return JoinPath(dir_, SegmentName(segment_)); }

// requires: everything written so far is durable
Status JournalWriter::StartSegment() {
  const SegmentHeader header{.segment = static_cast<uint64_t>(segment_ + 1),
                             .first = Lsn{next_.value - static_cast<int64_t>(records_.size())},
                             .ctl_epoch = ctl_epoch_,
                             .previous_hash = hash_,
                             .run_id = run_id_,
                             .begun_unix_ms = options_.begun_unix_ms};
  const std::string bytes = EncodeHeader(header);
  const std::string path = JoinPath(dir_, SegmentName(segment_ + 1));
  const auto make = [&]() -> StatusOr<std::unique_ptr<WritableFile>> {
    TP_ASSIGN_OR_RETURN(auto file, fs_.CreateNew(path));
    TP_RETURN_IF_ERROR(file->Append(bytes));
    TP_RETURN_IF_ERROR(file->Sync());
    TP_RETURN_IF_ERROR(fs_.SyncDir(dir_));
    return file;
  };
  auto file = make();
  if (!file.ok()) {
    // Best effort: a left-over without a valid header counts as a torn tail anyway.
    if (file.status().code() == StatusCode::kResourceExhausted) (void)fs_.RemoveFile(path);
    return file.status();
  }
  file_ = std::move(file).value();
  ++segment_;
  hash_ = Hash64(bytes);
  reserved_until_ = header_bytes_ = file_->size();
  return OkStatus();
}

Lsn JournalWriter::Append(const JournalRecord& record, uint64_t mono_ns) {
  EncodeFrame({.lsn = next_, .ctl_epoch = ctl_epoch_, .mono_ns = mono_ns, .record = record}, after_sync_,
              buffer_);
  after_sync_ = false;
  records_.push_back(buffer_.size());
  return Lsn{next_.value++};
}

Status JournalWriter::Broken(Status status) {
  // What goes wrong may be what the successor did, and is not the disk's fault then.
  if (Status ours = StillOurs(); ours.code() == StatusCode::kAborted) status = ours;
  broken_ = status;
  return status;
}

// All of the buffer or nothing: on a full disk the file is cut back to what it was.
Status JournalWriter::WriteBuffer() {
  const int64_t begin = file_->size();
  const auto more = static_cast<int64_t>(buffer_.size());
  // Renewed when half of it is used: when the disk cannot give more, the other half is still there.
  if (begin + more + options_.reserve_bytes / 2 > reserved_until_) {
    Status reserved = file_->Preallocate(more + options_.reserve_bytes);
    space_low_ = reserved.code() == StatusCode::kResourceExhausted;
    if (!reserved.ok() && !space_low_) return Broken(reserved);
    if (reserved.ok()) reserved_until_ = begin + more + options_.reserve_bytes;
  }
  Status written = file_->Append(buffer_);
  if (written.ok()) return written;
  if (written.code() != StatusCode::kResourceExhausted) return Broken(written);
  if (Status cut = file_->Truncate(begin); !cut.ok()) return Broken(cut);
  reserved_until_ = begin;  // cutting gave the reservation back
  return written;
}

Status JournalWriter::Flush() {
  if (!broken_.ok()) return broken_;
  if (buffer_.empty()) return OkStatus();
  const bool has_records = file_->size() > header_bytes_;
  if (new_base_ || (has_records && file_->size() + buffered_bytes() > options_.segment_bytes)) {
    // The old segment is whole and durable before the new one exists: a reader relies on it.
    if (Status synced = file_->Sync(); !synced.ok()) return Broken(synced);
    if (Status cut = file_->Truncate(file_->size()); !cut.ok()) return Broken(cut);
    if (Status ours = StillOurs(); !ours.ok()) return Broken(ours);
    if (Status started = StartSegment(); !started.ok()) {
      return started.code() == StatusCode::kResourceExhausted ? started : Broken(started);
    }
    new_base_ = false;
  }
  TP_RETURN_IF_ERROR(WriteBuffer());
  size_t begin = 0;
  for (const size_t end : records_) {
    hash_ = Hash64(std::string_view(buffer_).substr(begin, end - begin), hash_);
    begin = end;
  }
  buffer_.clear();
  records_.clear();
  if (Status ours = StillOurs(); !ours.ok()) return Broken(ours);
  return OkStatus();
}

Status JournalWriter::Sync() {
  TP_RETURN_IF_ERROR(Flush());
  if (durable_ == next_) return OkStatus();
  // After a failed fdatasync the kernel may have dropped the bytes; trying again would prove nothing.
  if (Status synced = file_->Sync(); !synced.ok()) return Broken(synced);
  if (Status ours = StillOurs(); !ours.ok()) return Broken(ours);
  durable_ = next_;
  after_sync_ = true;
  return OkStatus();
}

Status JournalWriter::SetBegun(int64_t begun_unix_ms) {
  Status flushed = Flush();
  options_.begun_unix_ms = begun_unix_ms;
  new_base_ = true;
  return flushed;
}

Status JournalWriter::Close() {
  TP_RETURN_IF_ERROR(Sync());
  Status cut = file_->Truncate(file_->size());
  file_.reset();
  lock_.reset();
  broken_ = FailedPrecondition(dir_ + ": the journal was closed");
  return cut;
}

}  // namespace tidepool::storage
