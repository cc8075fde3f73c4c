#include "workers/device/state_files.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/hash.h"
#include "core/model/cut.h"
#include "core/model/layout.h"
#include "core/sharding/intervals.h"
#include "workers/device/part_pieces.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // of a copy; whole words, as SaltedSum counts
constexpr std::string_view kTrainerFolder = "trainer/";

Status NotWhole(const std::string& path) {
  return ResourceExhausted(path + ": could not be written whole; is the disk full?");
}
// A file that is written from its start. Whole blocks of zeros are left out (a hole): they take no room, and
// read as zeros. Moments of parameters that no gradient has reached are such blocks.
class SparseFile {
 public:
  static StatusOr<SparseFile> Create(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return Unavailable(path + ": cannot be written");
    return SparseFile(path, file);
  }
  Status Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      // Blocks of the file: a hole begins and ends where one of the disk's does.
      const auto block = std::min(kBlock - static_cast<size_t>(size_) % kBlock, bytes.size());
      const auto piece = bytes.first(block);
      bytes = bytes.subspan(block);
      size_ += static_cast<int64_t>(block);
      const bool zeros =
          piece[0] == std::byte{0} && std::memcmp(piece.data(), piece.data() + 1, block - 1) == 0;
      if (zeros) {
        skipped_ = true;
        continue;
      }
      if (std::exchange(skipped_, false) &&
          fseeko(file_.get(), size_ - static_cast<int64_t>(block), SEEK_SET) != 0)
        return NotWhole(path_);
      if (std::fwrite(piece.data(), 1, block, file_.get()) != block) return NotWhole(path_);
    }
    return OkStatus();
  }
  Status Close() {
    bool whole = std::fflush(file_.get()) == 0;
    if (skipped_) whole = whole && ::ftruncate(fileno(file_.get()), size_) == 0;
    return std::fclose(file_.release()) == 0 && whole ? OkStatus() : NotWhole(path_);
  }

 private:
  SparseFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  static constexpr size_t kBlock = size_t{64} << 10;
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  int64_t size_ = 0;
  bool skipped_ = false;  // zeros in front of size_ were
};

// A file with bytes of a part of a state.
struct SharedFile {
  std::string path;
  model::Part part;                               // of the model
  sharding::Interval of;                          // in bytes of that
  std::optional<uint64_t> digest = std::nullopt;  // nothing: it was compared before
};

// "A<mark>B" with numbers of 0 and more; nothing else.
std::optional<std::pair<int64_t, int64_t>> Numbers(std::string_view text, std::string_view mark) {
  std::pair<int64_t, int64_t> n;
  const char* end = text.data() + text.size();
  const auto [at, bad] = std::from_chars(text.data(), end, n.first);
  if (bad != std::errc() || !std::string_view(at, end).starts_with(mark)) return std::nullopt;
  const auto [last, bad_too] = std::from_chars(at + mark.size(), end, n.second);
  if (bad_too != std::errc() || last != end || n.first < 0 || n.second < 0) return std::nullopt;
  return n;
}

constexpr std::string_view kMatricesMark = ".tp", kExpertsMark = ".ep";

// Of NAME[.tpRofN|.epRofN][.FROM-TO].bin what stands between NAME and .bin; nothing: of another part.
std::optional<SharedFile> Described(std::string_view between, int64_t size) {
  SharedFile file{.path = {}, .part = {}, .of = {0, size}};
  if (const bool experts = between.starts_with(kExpertsMark); experts || between.starts_with(kMatricesMark)) {
    const size_t end = std::min(between.find('.', 1), between.size());
    const auto part = Numbers(between.substr(3, end - 3), "of");
    if (!part) return std::nullopt;
    file.part = {part->first, part->second, experts ? model::Cut::kExperts : model::Cut::kMatrices};
    between.remove_prefix(end);
  }
  if (between.empty()) return file;
  const auto of = Numbers(between.substr(1), "-");
  if (between[0] != '.' || !of) return std::nullopt;
  file.of = {of->first, of->second};
  return file;
}

// What is in a folder, without digests.
StatusOr<std::vector<storage::ManifestFile>> Listed(const std::string& dir) {
  std::vector<storage::ManifestFile> files;
  std::error_code error;
  for (auto at = fs::directory_iterator(dir, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const auto size = static_cast<int64_t>(fs::file_size(at->path(), error));
    if (!error) files.push_back({at->path().filename().string(), size, 0});
  }
  if (error) return NotFound(dir + ": cannot be read (" + error.message() + ")");
  return files;
}

// NAME.bin, NAME.FROM-TO.bin. kDataLoss: one has another size than its name says.
StatusOr<std::vector<SharedFile>> FilesOf(const std::string& dir, const std::string& name,
                                          const std::vector<storage::ManifestFile>* manifest) {
  std::vector<storage::ManifestFile> listed;
  if (manifest == nullptr) {
    TP_ASSIGN_OR_RETURN(listed, Listed(dir));
  } else {
    for (storage::ManifestFile file : *manifest) {
      if (!file.path.starts_with(kTrainerFolder)) continue;
      file.path.erase(0, kTrainerFolder.size());
      listed.push_back(std::move(file));
    }
  }
  std::vector<SharedFile> files;
  for (const auto& [file, size, digest] : listed) {
    if (!file.starts_with(name + ".") || !file.ends_with(".bin")) continue;
    auto found = Described(std::string_view(file).substr(name.size(), file.size() - name.size() - 4), size);
    if (!found) continue;
    if (found->of.size() != size) {
      return DataLoss(dir + "/" + file + ": has " + std::to_string(size) +
                      " bytes, which are not those that its name says");
    }
    found->path = dir + "/" + file;
    if (manifest != nullptr) found->digest = digest;
    files.push_back(*std::move(found));
  }
  return files;
}

// Copies the bytes `of` the part to `into`, where they begin at `into_from`.
Status CopyFrom(const SharedFile& file, const sharding::Interval& of, const device::ByteStore& into,
                int64_t into_from) {
  std::ifstream in(file.path, std::ios::binary);
  if (!in) return NotFound(file.path + ": cannot be read");
  storage::FileDigest digest;
  std::vector<std::byte> piece(kPiece);
  // The digest is of all of the file.
  const sharding::Interval read = file.digest ? file.of : of;
  in.seekg(read.from - file.of.from);
  for (int64_t at = read.from; at < read.to;) {
    const auto n = std::min(static_cast<int64_t>(kPiece), read.to - at);
    const auto bytes = std::span(piece).first(static_cast<size_t>(n));
    in.read(reinterpret_cast<char*>(piece.data()), n);
    if (!in) return DataLoss(file.path + ": cannot be read, or ends early");
    digest.Update(bytes);
    if (const sharding::Interval wanted = sharding::Common(of, {at, at + n}); wanted.size() > 0)
      into.CopyFrom(static_cast<size_t>(wanted.from - into_from),
                    bytes.subspan(static_cast<size_t>(wanted.from - at), static_cast<size_t>(wanted.size())));
    at += n;
  }
  if (file.digest && (digest.Finish() != *file.digest || in.peek() != std::ifstream::traits_type::eof()))
    return DataLoss(file.path + ": is not what the checkpoint's manifest says (another digest)");
  return OkStatus();
}

// A piece of a part (part_pieces.h), in bytes, that a file has, or, of what is wanted, no file yet.
struct Segment {
  int64_t whole = 0, n = 0;
  size_t file = 0;
  int64_t at = 0;  // in the file, or in what is wanted
};
// `each`: bytes of an element. repeated: with what every part has.
void AddSegments(const model::ModelSpec& spec, const model::Part& part, const sharding::Interval& of,
                 int64_t each, bool repeated, size_t file, std::vector<Segment>& all) {
  for (const PartPiece& p : PiecesOfPart(spec, part, of, each))
    if (repeated || !p.everywhere) all.push_back({p.whole, p.n, file, p.at});
}

// Fills `part` from files of another mesh.
Status ReadCut(const std::string& name, const std::vector<SharedFile>& files, const train::NamedBytes& part,
               const model::ModelSpec& spec) {
  const auto size = static_cast<int64_t>(part.bytes.size());
  const int64_t all = part.piece ? part.piece->whole : size;
  const int64_t each = all / model::LayoutElements(model::PartSpec(spec, part.part));
  std::vector<Segment> sources, wanted;
  for (size_t i = 0; i < files.size(); ++i) {
    const Status cut = model::CheckCut(spec, files[i].part.of, files[i].part.what);
    if (!cut.ok() || files[i].part.rank >= files[i].part.of)
      return DataLoss(files[i].path + ": no part of this model has that name");
    AddSegments(spec, files[i].part, files[i].of, each, files[i].part.rank == 0, i, sources);
    if (files[i].digest) TP_RETURN_IF_ERROR(CopyFrom(files[i], {}, part.bytes, 0));  // compares it
  }
  AddSegments(spec, part.part, part.piece ? part.piece->of : sharding::Interval{0, size}, each,
              /*repeated=*/true, 0, wanted);
  const auto by_place = [](const Segment& a, const Segment& b) { return a.whole < b.whole; };
  std::ranges::sort(sources, by_place);
  for (size_t i = 1; i < sources.size(); ++i) {
    if (sources[i - 1].whole + sources[i - 1].n > sources[i].whole)
      return DataLoss(name + ": " + files[sources[i - 1].file].path + " and " + files[sources[i].file].path +
                      " have the same elements");
  }
  std::vector<std::ifstream> streams;
  for (const SharedFile& file : files) streams.emplace_back(file.path, std::ios::binary);
  std::vector<std::byte> piece;
  for (Segment want : wanted) {
    auto next = std::ranges::upper_bound(sources, want, by_place);
    if (next != sources.begin()) --next;
    for (; want.n > 0; ++next) {
      if (next == sources.end() || next->whole > want.whole || next->whole + next->n <= want.whole)
        return DataLoss(name + ": element " + std::to_string(want.whole / each) +
                        " of the model is in no file");
      const int64_t skip = want.whole - next->whole, n = std::min(want.n, next->n - skip);
      piece.resize(static_cast<size_t>(n));
      std::ifstream& in = streams[next->file];
      in.seekg(next->at + skip);
      in.read(reinterpret_cast<char*>(piece.data()), n);
      if (!in) return DataLoss(files[next->file].path + ": cannot be read, or ends early");
      part.bytes.CopyFrom(static_cast<size_t>(want.at), piece);
      want.whole += n, want.at += n, want.n -= n;
    }
  }
  return OkStatus();
}

Status Changed(const std::string& path) {
  return DataLoss(path + ": is not what this trainer parked there (another digest)");
}

}  // namespace

Status WritePart(const std::string& path, const device::ByteSource& bytes) {
  TP_ASSIGN_OR_RETURN(SparseFile file, SparseFile::Create(path));
  TP_RETURN_IF_ERROR(bytes.Each([&](std::span<const std::byte> piece) { return file.Append(piece); }));
  return file.Close();
}

Status ReadPart(const std::string& path, const device::ByteStore& bytes) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return NotFound(path + ": cannot be read (" + error.message() + ")");
  if (size != bytes.size()) {
    return DataLoss(path + ": has " + std::to_string(size) + " bytes, this trainer needs " +
                    std::to_string(bytes.size()));
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Unavailable(path + ": cannot be read");
  const Status whole = bytes.Fill([&](std::span<std::byte> piece) {
    return std::fread(piece.data(), 1, piece.size(), file) == piece.size() ? OkStatus()
                                                                           : DataLoss(path + ": ends early");
  });
  std::fclose(file);
  return whole;
}

std::string PartFile(const train::NamedBytes& part) {
  std::string name = part.name;
  if (!part.part.whole())
    name += std::string(part.part.what == model::Cut::kExperts ? kExpertsMark : kMatricesMark) +
            std::to_string(part.part.rank) + "of" + std::to_string(part.part.of);
  if (part.piece) name += "." + std::to_string(part.piece->of.from) + "-" + std::to_string(part.piece->of.to);
  return name + ".bin";
}

Status ReadShared(const std::string& dir, const train::NamedBytes& part, const model::ModelSpec& spec,
                  const std::vector<storage::ManifestFile>* manifest) {
  const auto size = static_cast<int64_t>(part.bytes.size());
  const int64_t whole = part.piece ? part.piece->whole : size;
  const sharding::Interval want = part.piece ? part.piece->of : sharding::Interval{0, size};
  TP_ASSIGN_OR_RETURN(const std::vector<SharedFile> files, FilesOf(dir, part.name, manifest));
  const std::string name = dir + "/" + part.name;
  if (files.empty()) return NotFound(name + ".bin: is not there");
  if (!part.part.whole() || std::ranges::any_of(files, [](const SharedFile& f) { return !f.part.whole(); })) {
    const std::string own = dir + "/" + PartFile(part);
    const auto same = std::ranges::find_if(files, [&](const SharedFile& f) { return f.path == own; });
    if (same == files.end() || same->of.size() != size) return ReadCut(name, files, part, spec);
    return CopyFrom(*same, same->of, part.bytes, same->of.from);
  }
  std::vector<sharding::Interval> sources;
  int64_t end = 0;
  for (const SharedFile& file : files) {
    sources.push_back(file.of);
    end = std::max(end, file.of.to);
  }
  if (end != whole) {
    return DataLoss(name + ": has " + std::to_string(end) + " bytes, this trainer needs " +
                    std::to_string(whole));
  }
  const auto copies = sharding::Reshard(sources, std::span(&want, 1));
  if (!copies.ok()) return copies.status().At(name + ", by the names of its files");
  for (const sharding::Copy& copy : *copies)
    TP_RETURN_IF_ERROR(CopyFrom(files[copy.source], copy.of, part.bytes, want.from));
  return OkStatus();
}

uint64_t DigestOf(const device::ByteSource& bytes, uint64_t salt) {
  uint64_t sum = 0, words = 0;
  const Status taken = bytes.Each([&](std::span<const std::byte> piece) {
    sum += SaltedSum(piece, salt, words);
    words += piece.size() / 8;
    return OkStatus();
  });
  TP_CHECK(taken.ok()) << taken.ToString();
  return sum;
}

Status ParkedState::Write(const std::vector<train::NamedBytes>& state) {
  Forget();
  std::error_code error;
  made_ = true;
  fs::create_directories(dir_, error);
  if (error) return Unavailable(dir_ + ": cannot be made (" + error.message() + ")");
  for (const train::NamedBytes& part : state) {
    if (part.name == "weights") continue;
    const std::string file = PartFile(part);
    if (const Status written = WritePart(PathOf(file), part.bytes); !written.ok()) {
      Forget();
      return written;
    }
    files_[file] = {DigestOf(part.bytes), part.piece.has_value(), static_cast<int64_t>(part.bytes.size())};
  }
  return OkStatus();
}

int64_t ParkedState::bytes() const {
  int64_t sum = 0;
  for (const auto& [file, parked] : files_) sum += parked.bytes;
  return sum;
}

Status ParkedState::Read(const std::vector<train::NamedBytes>& state) const {
  for (const train::NamedBytes& part : state) {
    if (part.name == "weights") continue;
    const std::string file = PartFile(part);
    TP_RETURN_IF_ERROR(ReadPart(PathOf(file), part.bytes));
    if (DigestOf(part.bytes) != files_.at(file).digest) return Changed(PathOf(file));
  }
  return OkStatus();
}

StatusOr<std::vector<std::string>> ParkedState::CopyTo(const std::string& dir, bool part) const {
  std::vector<char> piece(kPiece);
  std::vector<std::string> names;
  for (const auto& [file, parked] : files_) {
    if (part && !parked.piece) continue;
    std::ifstream in(PathOf(file), std::ios::binary);
    TP_ASSIGN_OR_RETURN(SparseFile out, SparseFile::Create(dir + "/" + file));
    uint64_t sum = 0;
    for (uint64_t words = 0; in; words += kPiece / 8) {
      in.read(piece.data(), kPiece);
      const auto got = static_cast<size_t>(in.gcount());
      const auto bytes = std::as_bytes(std::span(piece.data(), got));
      sum += SaltedSum(bytes, 0, words);
      TP_RETURN_IF_ERROR(out.Append(bytes));
    }
    TP_RETURN_IF_ERROR(out.Close());
    if (sum != parked.digest) return Changed(PathOf(file));
    names.push_back(file);
  }
  return names;
}

void ParkedState::Forget() {
  files_.clear();
  if (!std::exchange(made_, false)) return;
  std::error_code error;  // a file that stays is removed with the folder of all parked states
  fs::remove_all(dir_, error);
}

}  // namespace tidepool::workers
