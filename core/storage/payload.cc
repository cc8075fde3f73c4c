#include "core/storage/payload.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/hash.h"
#include "core/storage/little_endian.h"

namespace tidepool::storage {
namespace {

constexpr std::string_view kMagic("TPPAYL\r\n", 8);
constexpr uint32_t kSchema = 1;
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 30;
constexpr size_t kOpenFiles = 16;  // read handles kept; a step's rows lie in one or two files

std::string PayloadFileName(int64_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  return digits + ".tpp";
}

StatusOr<std::vector<int64_t>> ListPayloadFiles(FileSystem& fs, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(dir));
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    int64_t number = -1;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), number).ptr;
    if (number >= 0 && std::string_view(end) == ".tpp") numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

template <typename T>
void PutList(std::string& out, const std::vector<T>& items) {
  PutNumber(out, static_cast<uint32_t>(items.size()));
  if constexpr (std::endian::native == std::endian::little) {
    out.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
  } else {
    for (const T item : items) PutNumber(out, item);
  }
}

template <typename T>
std::vector<T> GetList(ByteReader& reader) {
  std::vector<T> items(reader.Count(sizeof(T)));
  if constexpr (std::endian::native == std::endian::little) {
    const std::string_view bytes = reader.Bytes(items.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(items.data(), bytes.data(), bytes.size());
  } else {
    for (T& item : items) item = reader.Number<T>();
  }
  return items;
}

}  // namespace

void AddVersion(std::vector<VersionRun>& runs, const Version& version, int32_t tokens) {
  if (tokens <= 0) return;
  if (!runs.empty() && runs.back().version == version) {
    runs.back().tokens += tokens;
  } else {
    runs.push_back({version, tokens});
  }
}

StatusOr<std::string> EncodePayload(const Payload& payload) {
  const size_t n = payload.response.size();
  size_t versioned = 0;
  for (const VersionRun& run : payload.versions) versioned += static_cast<size_t>(std::max(run.tokens, 0));
  const auto fits = [n](size_t size) { return size == 0 || size == n; };
  if (!fits(payload.logprobs.size()) || !fits(payload.log_kept.size()) ||
      (payload.fragment.empty() && !fits(versioned)) || !fits(payload.loss_mask.size())) {
    return InvalidArgument("payload of sample " + ToString(payload.tid) + ": the response has " +
                           std::to_string(n) + " tokens, but there are " +
                           std::to_string(payload.logprobs.size()) + " logprobs, " +
                           std::to_string(payload.log_kept.size()) + " log_kept, " +
                           std::to_string(payload.loss_mask.size()) + " of a loss mask and versions of " +
                           std::to_string(versioned) + " tokens; each has to be as many, or none");
  }
  std::string out;
  out.reserve(64 + 4 * (payload.prompt.size() + 3 * n) + 16 * payload.versions.size());
  PutNumber(out, uint32_t{0});
  PutNumber(out, payload.tid.ordinal);
  PutNumber(out, payload.tid.issue);
  PutNumber(out, payload.tid.sample);
  PutNumber(out, payload.att);
  PutNumber(out, static_cast<uint8_t>(payload.finish));
  PutList(out, payload.prompt);
  PutList(out, payload.response);
  PutList(out, payload.logprobs);
  PutList(out, payload.log_kept);
  PutNumber(out, static_cast<uint32_t>(payload.versions.size()));
  for (const VersionRun& run : payload.versions) {
    PutNumber(out, run.version.lineage);
    PutNumber(out, run.version.number);
    PutNumber(out, run.tokens);
  }
  // Sections at the end, each with the ones before it, empty where they are not used.
  const bool turns = !payload.turns.empty(), fragment = turns || !payload.fragment.empty(),
             masked = fragment || !payload.loss_mask.empty();
  if (masked || !payload.routing.empty()) PutString(out, payload.routing);
  if (masked) PutList(out, payload.loss_mask);
  if (fragment) PutString(out, payload.fragment);
  if (turns) {
    PutNumber(out, static_cast<uint32_t>(payload.turns.size()));
    for (const TurnMark& turn : payload.turns) {
      PutNumber(out, turn.begin);
      PutNumber(out, turn.state);
      PutNumber(out, turn.reward_before);
    }
  }
  if (static_cast<int64_t>(out.size()) > kMaxPayloadBytes) {
    return InvalidArgument("payload of sample " + ToString(payload.tid) + ": " + std::to_string(out.size()) +
                           " bytes, at most " + std::to_string(kMaxPayloadBytes) + " can be stored");
  }
  std::string size;
  PutNumber(size, static_cast<uint32_t>(out.size()));
  out.replace(0, size.size(), size);
  return out;
}

StatusOr<Payload> DecodePayload(std::string_view bytes) {
  ByteReader reader(bytes);
  Payload payload;
  const auto size = reader.Number<uint32_t>();
  payload.tid.ordinal = reader.Number<int64_t>();
  payload.tid.issue = reader.Number<int32_t>();
  payload.tid.sample = reader.Number<int32_t>();
  payload.att = reader.Number<int32_t>();
  const auto finish = reader.Number<uint8_t>();
  payload.finish = static_cast<FinishReason>(finish);
  payload.prompt = GetList<int32_t>(reader);
  payload.response = GetList<int32_t>(reader);
  payload.logprobs = GetList<float>(reader);
  payload.log_kept = GetList<float>(reader);
  payload.versions.resize(reader.Count(16));
  for (VersionRun& run : payload.versions) {
    run.version.lineage = reader.Number<int32_t>();
    run.version.number = reader.Number<int64_t>();
    run.tokens = reader.Number<int32_t>();
  }
  if (reader.ok() && reader.left() > 0) payload.routing = std::string(reader.String());
  if (reader.ok() && reader.left() > 0) payload.loss_mask = GetList<uint8_t>(reader);
  if (reader.ok() && reader.left() > 0) payload.fragment = std::string(reader.String());
  if (reader.ok() && reader.left() > 0) {
    payload.turns.resize(reader.Count(24));
    for (TurnMark& turn : payload.turns) {
      turn.begin = reader.Number<int64_t>();
      turn.state = reader.Number<uint64_t>();
      turn.reward_before = reader.Number<double>();
    }
  }
  if (!reader.ok() || reader.left() != 0 ||
      (!payload.loss_mask.empty() && payload.loss_mask.size() != payload.response.size()) ||
      size != bytes.size() || finish > static_cast<uint8_t>(FinishReason::kLength)) {
    return DataLoss("the bytes are no payload");
  }
  return payload;
}

StatusOr<std::unique_ptr<PayloadWriter>> PayloadWriter::Open(FileSystem& fs, const std::string& dir,
                                                             const std::string& run_id, int64_t file_bytes) {
  TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
  std::unique_ptr<PayloadWriter> writer(new PayloadWriter(fs, dir, run_id, file_bytes));
  TP_ASSIGN_OR_RETURN(const auto numbers, ListPayloadFiles(fs, dir));
  if (!numbers.empty()) writer->number_ = numbers.back();
  return writer;
}

Status PayloadWriter::StartFile() {
  std::string header(kMagic);
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

StatusOr<PayloadRef> PayloadWriter::Append(const Payload& payload) {
  if (!broken_.ok()) return broken_;
  TP_ASSIGN_OR_RETURN(const std::string bytes, EncodePayload(payload));
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

StatusOr<Payload> PayloadReader::Read(const PayloadRef& ref) {
  const std::string path = JoinPath(dir_, PayloadFileName(ref.file));
  std::shared_ptr<ReadableFile> file;
  {
    const std::lock_guard lock(mu_);
    auto& cached = files_[ref.file];
    if (cached == nullptr) {
      auto opened = fs_.OpenForRead(path);
      if (!opened.ok()) {
        files_.erase(ref.file);
        return opened.status();
      }
      cached = std::move(opened).value();
    }
    file = cached;
    if (files_.size() > kOpenFiles)
      files_.erase(files_.begin()->first == ref.file ? std::prev(files_.end()) : files_.begin());
  }
  if (ref.offset < 0 || ref.bytes < 0)
    return InvalidArgument(path + ": a payload reference with a negative place");
  TP_ASSIGN_OR_RETURN(const std::string bytes, file->ReadAt(ref.offset, ref.bytes));
  const std::string where = path + ": offset " + std::to_string(ref.offset);
  if (static_cast<int64_t>(bytes.size()) != ref.bytes) {
    return DataLoss(where + ": the file ends after " + std::to_string(bytes.size()) + " of the payload's " +
                    std::to_string(ref.bytes) + " bytes; restore the file from a copy");
  }
  if (Hash64(bytes) != ref.digest) {
    return DataLoss(where +
                    ": the payload's digest differs from the journal's; restore the file from a copy");
  }
  auto payload = DecodePayload(bytes);
  return payload.ok() ? payload : StatusOr<Payload>(payload.status().At(where));
}

StatusOr<int64_t> DeletePayloadFilesBelow(FileSystem& fs, const std::string& dir, int64_t smallest_needed) {
  TP_ASSIGN_OR_RETURN(const auto numbers, ListPayloadFiles(fs, dir));
  int64_t deleted = 0;
  // Oldest first, and never the newest file, so that numbers are not given out again.
  for (size_t i = 0; i + 1 < numbers.size() && numbers[i] < smallest_needed; ++i) {
    TP_RETURN_IF_ERROR(fs.RemoveFile(JoinPath(dir, PayloadFileName(numbers[i]))));
    ++deleted;
  }
  if (deleted > 0) TP_RETURN_IF_ERROR(fs.SyncDir(dir));
  return deleted;
}

}  // namespace tidepool::storage
