#include "core/storage/token_log.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "core/base/hash.h"
#include "core/base/little_endian.h"
#include "core/sample/codec.h"
#include "core/storage/journal_format.h"
#include "core/storage/payload.h"

namespace tidepool::storage {
namespace {

constexpr std::string_view kMagic("TPTOKS\r\n", 8);
constexpr std::string_view kEnding = ".tpt";
constexpr uint32_t kSchema = 1;
constexpr int64_t kFirstRead = 4096;  // most entries are smaller
constexpr int64_t kMaxEntryBytes = sample::kMaxTrajectoryBytes;

std::string PathOf(const std::string& dir, int64_t file) {
  return JoinPath(dir, NumberedFileName(file, kEnding));
}

std::string ProofPath(const std::string& dir) { return JoinPath(dir, "proof"); }

std::string Encode(const LoggedTokens& entry) {
  std::string body;
  PutNumber(body, entry.tid.ordinal);
  PutNumber(body, entry.tid.issue);
  PutNumber(body, entry.tid.sample);
  PutNumber(body, entry.att);
  PutNumber(body, entry.from);
  PutNumber(body, entry.before.file);
  PutNumber(body, entry.before.offset);
  body += sample::Encode(entry.tokens);
  std::string out;
  PutNumber(out, static_cast<uint32_t>(body.size() + sizeof(uint64_t)));
  out += body;
  PutNumber(out, Hash64(out));
  return out;
}

// `bytes`: the whole entry.
StatusOr<LoggedTokens> Decode(std::string_view bytes, const std::string& where) {
  constexpr size_t kHash = sizeof(uint64_t);
  ByteReader end(bytes.substr(bytes.size() - kHash));
  if (end.Number<uint64_t>() != Hash64(bytes.substr(0, bytes.size() - kHash)))
    return DataLoss(where + ": the tokens there are damaged");
  ByteReader reader(bytes.substr(sizeof(uint32_t), bytes.size() - sizeof(uint32_t) - kHash));
  LoggedTokens entry;
  entry.tid.ordinal = reader.Number<int64_t>();
  entry.tid.issue = reader.Number<int32_t>();
  entry.tid.sample = reader.Number<int32_t>();
  entry.att = reader.Number<int32_t>();
  entry.from = reader.Number<int64_t>();
  entry.before.file = reader.Number<int64_t>();
  entry.before.offset = reader.Number<int64_t>();
  if (!reader.ok()) return DataLoss(where + ": it is no entry of a token log");
  auto tokens = sample::DecodeSegment(reader.Bytes(reader.left()));
  if (!tokens.ok()) return tokens.status().At(where);
  entry.tokens = *std::move(tokens);
  return entry;
}

StatusOr<LoggedTokens> ReadEntry(ReadableFile& file, const TokenPlace& at, const std::string& where) {
  TP_ASSIGN_OR_RETURN(std::string bytes, file.ReadAt(at.offset, kFirstRead));
  const auto cut = [&] { return DataLoss(where + ": the file ends within the tokens there"); };
  if (bytes.size() < sizeof(uint32_t)) return cut();
  ByteReader length(bytes);
  const auto size = static_cast<int64_t>(sizeof(uint32_t)) + length.Number<uint32_t>();
  if (size > kMaxEntryBytes || size < static_cast<int64_t>(sizeof(uint32_t) + sizeof(uint64_t)))
    return DataLoss(where + ": it is no entry of a token log");
  if (static_cast<int64_t>(bytes.size()) < size) {
    TP_ASSIGN_OR_RETURN(bytes, file.ReadAt(at.offset, size));
    if (static_cast<int64_t>(bytes.size()) < size) return cut();
  }
  return Decode(std::string_view(bytes).substr(0, static_cast<size_t>(size)), where);
}

}  // namespace

StatusOr<std::unique_ptr<TokenLogWriter>> TokenLogWriter::Open(FileSystem& fs, const std::string& dir,
                                                               const std::string& run_id, int64_t first,
                                                               int64_t file_bytes) {
  TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
  return std::unique_ptr<TokenLogWriter>(new TokenLogWriter(fs, dir, run_id, first, file_bytes));
}

StatusOr<std::vector<TokenPlace>> TokenLogWriter::Append(const std::vector<LoggedTokens>& entries) {
  if (!broken_.ok()) return broken_;
  if (file_ == nullptr || file_->size() >= file_bytes_) {
    auto file = fs_.CreateNew(PathOf(dir_, next_), FileAccess::kOwnerOnly);
    // After a power cut an incarnation may be given out a second time.
    for (int i = 0; i < 16 && file.status().code() == StatusCode::kAlreadyExists; ++i)
      file = fs_.CreateNew(PathOf(dir_, ++next_), FileAccess::kOwnerOnly);
    if (!file.ok()) return broken_ = file.status();
    path_ = PathOf(dir_, next_);
    file_ = *std::move(file);
    std::string header(kMagic);
    PutNumber(header, kSchema);
    PutNumber(header, static_cast<uint64_t>(next_++));
    PutString(header, run_id_);
    if (broken_ = file_->Append(header); !broken_.ok()) return broken_;
  }
  std::string bytes;
  std::vector<TokenPlace> places;
  for (const LoggedTokens& entry : entries) {
    places.push_back({next_ - 1, file_->size() + static_cast<int64_t>(bytes.size())});
    bytes += Encode(entry);
  }
  if (broken_ = file_->Append(bytes); !broken_.ok()) return broken_;
  return places;
}

StatusOr<TokenChain> ReadTokenChain(FileSystem& fs, const std::string& dir, const SampleId& tid, int32_t att,
                                    const TokenPlace& newest, const TokenPlace& known) {
  TokenChain chain;
  std::vector<sample::Segment> back;  // newest first
  std::unique_ptr<ReadableFile> file;
  TokenPlace open;
  int64_t end = -1;  // where the segment of this entry has to end
  for (TokenPlace at = newest;;) {
    const std::string path = PathOf(dir, at.file);
    const std::string where = path + ": offset " + std::to_string(at.offset);
    if (at.file < 0 || at.offset < 0) return DataLoss(where + ": a place that is none");
    if (file == nullptr || open.file != at.file) {
      TP_ASSIGN_OR_RETURN(file, fs.OpenForRead(path));
      open = at;
      chain.files.insert(at.file);
    }
    TP_ASSIGN_OR_RETURN(LoggedTokens entry, ReadEntry(*file, at, where));
    const int64_t size = entry.tokens.size();
    const bool made = entry.tokens.kind == sample::SegmentKind::kTokens ||
                      entry.tokens.kind == sample::SegmentKind::kObservation ||
                      entry.tokens.kind == sample::SegmentKind::kFragment;
    if (!made || entry.tokens.outlined || entry.tid != tid || entry.att != att || size <= 0 ||
        entry.from < 0 || (end >= 0 && entry.from + size != end))
      return DataLoss(where + ": the tokens there are not those of " + ToString(tid) + " attempt " +
                      std::to_string(att));
    end = entry.from;
    at = entry.before;
    back.push_back(std::move(entry.tokens));
    if (end == 0 || (known.valid() && at == known)) break;
  }
  chain.from = end;
  sample::Trajectory joined;
  for (auto segment = back.rbegin(); segment != back.rend(); ++segment) joined.Append(std::move(*segment));
  chain.segments = std::move(joined.segments);
  return chain;
}

StatusOr<std::vector<sample::Segment>> FillOutline(const std::vector<sample::Segment>& outline,
                                                   TokenChain chain, const SampleId& tid) {
  std::vector<sample::Segment> filled;
  auto read = chain.segments.begin();
  for (const sample::Segment& said : outline) {
    sample::Segment segment{.kind = said.kind};
    if (said.size() > 0 && read != chain.segments.end()) segment = std::move(*read++);
    if (segment.kind != said.kind || segment.size() != said.size())
      return DataLoss("tokens/ has other tokens of " + ToString(tid) + " than were said");
    segment.turn = said.turn;
    filled.push_back(std::move(segment));
  }
  if (read != chain.segments.end())
    return DataLoss("tokens/ has more tokens of " + ToString(tid) + " than were said");
  return filled;
}

StatusOr<TokenChain> AwaitTokenChain(FileSystem& fs, const std::string& dir, const SampleId& tid, int32_t att,
                                     const TokenPlace& newest, std::chrono::steady_clock::time_point until,
                                     const TokenPlace& known) {
  for (;;) {
    auto chain = ReadTokenChain(fs, dir, tid, att, newest, known);
    if (chain.ok() || std::chrono::steady_clock::now() >= until) return chain;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Status DeleteTokenFiles(FileSystem& fs, const std::string& dir, const std::set<int64_t>& used,
                        const std::map<int64_t, int64_t>& writing, int64_t newest_writer) {
  const auto numbers = ListNumberedFiles(fs, dir, kEnding);
  if (numbers.status().code() == StatusCode::kNotFound) return OkStatus();
  TP_RETURN_IF_ERROR(numbers.status());
  for (const int64_t number : *numbers) {
    const auto current = writing.find(WriterOf(number));
    if (used.contains(number) || WriterOf(number) > newest_writer) continue;
    if (current != writing.end() && number >= current->second) continue;
    TP_RETURN_IF_ERROR(fs.RemoveFile(PathOf(dir, number)));
  }
  return OkStatus();
}

StatusOr<std::string> MakeTokenProof(FileSystem& fs, const std::vector<std::string>& dirs) {
  std::string proof;
  if (auto there = fs.ReadFile(ProofPath(dirs.front()), 64); there.ok()) proof = *std::move(there);
  std::random_device random;
  while (proof.size() < 32) proof += std::to_string(random());
  for (const std::string& dir : dirs) {
    if (HasTokenProof(fs, {dir}, proof)) continue;
    TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
    TP_RETURN_IF_ERROR(fs.WriteFile(ProofPath(dir), proof, FileAccess::kOwnerOnly));
  }
  return proof;
}

bool HasTokenProof(FileSystem& fs, const std::vector<std::string>& dirs, const std::string& proof) {
  return !proof.empty() && std::ranges::all_of(dirs, [&](const std::string& dir) {
    const auto there = fs.ReadFile(ProofPath(dir), 64);
    return there.ok() && *there == proof;
  });
}

}  // namespace tidepool::storage
