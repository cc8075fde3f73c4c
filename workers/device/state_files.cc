#include "workers/device/state_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "core/base/hash.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // of a copy; whole words, as SaltedSum counts

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
    if (const Status written = WritePart(PathOf(part.name), part.bytes); !written.ok()) {
      Forget();
      return written;
    }
    digests_[part.name] = DigestOf(part.bytes);
  }
  return OkStatus();
}

Status ParkedState::Read(const std::vector<train::NamedBytes>& state) const {
  for (const train::NamedBytes& part : state) {
    if (part.name == "weights") continue;
    TP_RETURN_IF_ERROR(ReadPart(PathOf(part.name), part.bytes));
    if (DigestOf(part.bytes) != digests_.at(part.name)) return Changed(PathOf(part.name));
  }
  return OkStatus();
}

Status ParkedState::CopyTo(const std::string& dir) const {
  std::vector<char> piece(kPiece);
  for (const auto& [part, digest] : digests_) {
    std::ifstream in(PathOf(part), std::ios::binary);
    const std::string path = dir + "/" + part + ".bin";
    TP_ASSIGN_OR_RETURN(SparseFile out, SparseFile::Create(path));
    uint64_t sum = 0;
    for (uint64_t words = 0; in; words += kPiece / 8) {
      in.read(piece.data(), kPiece);
      const auto got = static_cast<size_t>(in.gcount());
      const auto bytes = std::as_bytes(std::span(piece.data(), got));
      sum += SaltedSum(bytes, 0, words);
      TP_RETURN_IF_ERROR(out.Append(bytes));
    }
    TP_RETURN_IF_ERROR(out.Close());
    if (sum != digest) return Changed(PathOf(part));
  }
  return OkStatus();
}

void ParkedState::Forget() {
  digests_.clear();
  if (!std::exchange(made_, false)) return;
  std::error_code error;  // a file that stays is removed with the folder of all parked states
  fs::remove_all(dir_, error);
}

}  // namespace tidepool::workers
