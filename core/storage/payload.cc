#include "core/storage/payload.h"

#include <utility>

#include "core/base/hash.h"
#include "core/base/little_endian.h"
#include "core/sample/codec.h"
#include "core/storage/journal_format.h"
#include "core/storage/payload_v1.h"

namespace tidepool::storage {
namespace {

constexpr std::string_view kPayloadMagic("TPPAYL\r\n", 8);
constexpr std::string_view kEnding = ".tpp";
constexpr uint32_t kSchema = 2;
constexpr size_t kOpenFiles = 16;  // read handles kept; a step's rows lie in one or two files

std::string PayloadFileName(int64_t number) { return NumberedFileName(number, kEnding); }

}  // namespace

StatusOr<std::unique_ptr<PayloadWriter>> PayloadWriter::Open(FileSystem& fs, const std::string& dir,
                                                             const std::string& run_id, int64_t file_bytes,
                                                             int64_t first) {
  TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
  std::unique_ptr<PayloadWriter> writer(new PayloadWriter(fs, dir, run_id, file_bytes));
  TP_ASSIGN_OR_RETURN(const auto numbers, ListNumberedFiles(fs, dir, kEnding));
  writer->number_ = first - 1;
  for (const int64_t number : numbers) {
    if (WriterOf(number) == WriterOf(first)) writer->number_ = number;
  }
  return writer;
}

Status PayloadWriter::StartFile() {
  std::string header(kPayloadMagic);
  PutNumber(header, kSchema);
  PutNumber(header, static_cast<uint64_t>(number_ + 1));
  PutString(header, run_id_);
  const std::string path = JoinPath(dir_, PayloadFileName(number_ + 1));
  TP_ASSIGN_OR_RETURN(auto file, fs_.CreateNew(path, FileAccess::kOwnerOnly));
  Status written = file->Append(header);
  if (written.ok()) written = fs_.SyncDir(dir_);
  if (!written.ok()) {
    (void)fs_.RemoveFile(path);  // so that a retry can make it; the first error is the one to tell
    return written;
  }
  file_ = std::move(file);
  ++number_;
  return OkStatus();
}

StatusOr<PayloadRef> PayloadWriter::Append(const sample::Trajectory& trajectory) {
  if (!broken_.ok()) return broken_;
  TP_ASSIGN_OR_RETURN(const std::string bytes, sample::Encode(trajectory));
  if (file_ == nullptr || file_->size() + static_cast<int64_t>(bytes.size()) > file_bytes_) {
    TP_RETURN_IF_ERROR(Sync());  // a later Sync reaches the new file only
    TP_RETURN_IF_ERROR(StartFile());
  }
  const PayloadRef ref{.file = number_,
                       .offset = file_->size(),
                       .bytes = static_cast<int64_t>(bytes.size()),
                       .digest = Hash64(bytes)};
  if (Status written = file_->Append(bytes); !written.ok()) {
    Status cut = file_->Truncate(ref.offset);
    if (!cut.ok() || written.code() != StatusCode::kResourceExhausted) broken_ = written;
    return written;
  }
  unsynced_ = true;
  return ref;
}

std::string PayloadWriter::current_file() const {
  return file_ == nullptr ? "" : JoinPath(dir_, PayloadFileName(number_));
}

Status PayloadWriter::Sync() {
  if (!broken_.ok()) return broken_;
  if (!unsynced_) return OkStatus();
  // As with the journal: a failed fdatasync cannot be repeated with meaning.
  broken_ = file_->Sync();
  unsynced_ = !broken_.ok();
  return broken_;
}

StatusOr<std::shared_ptr<const PayloadReader::OpenFile>> PayloadReader::Open(int64_t number) {
  {
    const MutexLock lock(mu_);
    if (const auto cached = files_.find(number); cached != files_.end()) return cached->second;
  }
  const std::string path = JoinPath(dir_, PayloadFileName(number));
  TP_ASSIGN_OR_RETURN(auto file, fs_.OpenForRead(path));
  TP_ASSIGN_OR_RETURN(const std::string header,
                      file->ReadAt(0, static_cast<int64_t>(kPayloadMagic.size() + 4)));
  ByteReader reader(header);
  const bool magic = reader.Bytes(kPayloadMagic.size()) == kPayloadMagic;
  const auto schema = reader.Number<uint32_t>();
  if (!magic || !reader.ok())
    return DataLoss(path + ": it does not begin with TPPAYL; it is no payload file");
  if (schema != kSchema && schema != kSchemaV1) {
    return FailedPrecondition(path + ": payload schema " + std::to_string(schema) + ", this program reads " +
                              std::to_string(kSchemaV1) + " and " + std::to_string(kSchema) +
                              "; use the version of tidepool that wrote the run");
  }
  auto opened = std::make_shared<const OpenFile>(OpenFile{std::move(file), schema});
  const MutexLock lock(mu_);
  if (files_.size() >= kOpenFiles) files_.erase(files_.begin());
  files_[number] = opened;
  return std::shared_ptr<const OpenFile>(std::move(opened));
}

std::string PayloadReader::Where(int64_t file, int64_t offset) const {
  return JoinPath(dir_, PayloadFileName(file)) + ": offset " + std::to_string(offset);
}

void PayloadReader::Forget(int64_t number) {
  const MutexLock lock(mu_);
  files_.erase(number);
}

StatusOr<PayloadBytes> PayloadReader::ReadBytes(int64_t file, int64_t offset, int64_t bytes) {
  if (file < 0 || offset < 0 || bytes < 0)
    return InvalidArgument(Where(file, offset) + ": a payload reference with a negative place");
  for (bool anew = false;; anew = true) {
    TP_ASSIGN_OR_RETURN(const auto open, Open(file));
    StatusOr<std::string> read = open->file->ReadAt(offset, bytes);
    if (read.ok() && (anew || static_cast<int64_t>(read->size()) == bytes))
      return PayloadBytes{open->schema, *std::move(read)};
    if (anew) return read.status();
    Forget(file);
  }
}

StatusOr<sample::Trajectory> PayloadReader::Read(const PayloadRef& ref) {
  TP_ASSIGN_OR_RETURN(const PayloadBytes payload, ReadBytes(ref.file, ref.offset, ref.bytes));
  return DecodePayload(payload, ref, Where(ref.file, ref.offset));
}

StatusOr<sample::Trajectory> PayloadReader::Read(const record::Enq& enq) {
  const auto look = [&]() -> StatusOr<sample::Trajectory> {
    TP_ASSIGN_OR_RETURN(const PayloadBytes payload,
                        ReadBytes(enq.payload_file, enq.payload_offset, enq.payload_bytes));
    return DecodePayload(payload, enq, Where(enq.payload_file, enq.payload_offset));
  };
  auto trajectory = look();
  if (trajectory.status().code() != StatusCode::kDataLoss) return trajectory;
  Forget(enq.payload_file);  // this host may have seen a file that another one was writing
  return look();
}

StatusOr<sample::Trajectory> DecodePayload(const PayloadBytes& payload, const PayloadRef& ref,
                                           const std::string& where) {
  if (static_cast<int64_t>(payload.bytes.size()) != ref.bytes) {
    return DataLoss(where + ": the file ends after " + std::to_string(payload.bytes.size()) +
                    " of the payload's " + std::to_string(ref.bytes) +
                    " bytes; restore the file from a copy");
  }
  if (Hash64(payload.bytes) != ref.digest) {
    return DataLoss(where +
                    ": the payload's digest differs from the journal's; restore the file from a copy");
  }
  auto trajectory =
      payload.schema == kSchemaV1 ? DecodePayloadV1(payload.bytes) : sample::Decode(payload.bytes);
  return trajectory.ok() ? trajectory : StatusOr<sample::Trajectory>(trajectory.status().At(where));
}

StatusOr<sample::Trajectory> DecodePayload(const PayloadBytes& payload, const record::Enq& enq,
                                           const std::string& where) {
  const PayloadRef ref{enq.payload_file, enq.payload_offset, enq.payload_bytes, enq.digest};
  TP_ASSIGN_OR_RETURN(sample::Trajectory t, DecodePayload(payload, ref, where));
  if (t.tid != enq.tid || t.att != enq.att || t.prompt_size() != enq.prompt_len ||
      t.size() != enq.response_len) {
    return DataLoss("the payload of " + ToString(enq.tid) + " attempt " + std::to_string(enq.att) + " (" +
                    std::to_string(enq.prompt_len) + " + " + std::to_string(enq.response_len) +
                    " tokens by its ENQ) holds " + ToString(t.tid) + " attempt " + std::to_string(t.att) +
                    " with " + std::to_string(t.prompt_size()) + " + " + std::to_string(t.size()) +
                    " tokens");
  }
  std::vector<record::VersionTokens> versions;
  for (const auto& [version, tokens] : t.VersionsWithLoss()) versions.push_back({version, tokens});
  if (!enq.versions.empty() && enq.versions != versions)
    return DataLoss("the payload of " + ToString(enq.tid) +
                    " holds tokens of other versions than its ENQ says");
  return t;
}

void AddFile(FirstFiles& first, int64_t file) {
  const auto [at, added] = first.try_emplace(WriterOf(file), file);
  if (!added) at->second = std::min(at->second, file);
}

StatusOr<FirstFiles> FirstPayloadFiles(FileSystem& fs, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const auto numbers, ListNumberedFiles(fs, dir, kEnding));
  FirstFiles first;
  for (const int64_t number : numbers) AddFile(first, number);
  return first;
}

StatusOr<int64_t> DeletePayloadFilesBelow(FileSystem& fs, const std::string& dir, const FirstFiles& needed,
                                          int64_t newest_writer) {
  TP_ASSIGN_OR_RETURN(const auto numbers, ListNumberedFiles(fs, dir, kEnding));
  int64_t deleted = 0;
  // Oldest first, and never the newest file, so that numbers are not given out again.
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    const auto first = needed.find(WriterOf(numbers[i]));
    if (first != needed.end() ? numbers[i] >= first->second : WriterOf(numbers[i]) > newest_writer) continue;
    TP_RETURN_IF_ERROR(fs.RemoveFile(JoinPath(dir, PayloadFileName(numbers[i]))));
    ++deleted;
  }
  if (deleted > 0) TP_RETURN_IF_ERROR(fs.SyncDir(dir));
  return deleted;
}

}  // namespace tidepool::storage
