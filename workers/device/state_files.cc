#include "workers/device/state_files.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/base/hash.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // of a copy; whole words, as SaltedSum counts

Status NotWhole(const std::string& path) {
  return ResourceExhausted(path + ": could not be written whole; is the disk full?");
}
Status Changed(const std::string& path) {
  return DataLoss(path + ": is not what this trainer parked there (another digest)");
}

}  // namespace

Status WritePart(const std::string& path, std::span<const std::byte> bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Unavailable(path + ": cannot be written");
  const bool wrote = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = std::fclose(file) == 0;
  return wrote && closed ? OkStatus() : NotWhole(path);
}

Status ReadPart(const std::string& path, std::span<std::byte> bytes) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return NotFound(path + ": cannot be read (" + error.message() + ")");
  if (size != bytes.size()) {
    return DataLoss(path + ": has " + std::to_string(size) + " bytes, this trainer needs " +
                    std::to_string(bytes.size()));
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Unavailable(path + ": cannot be read");
  const bool whole = std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size();
  std::fclose(file);
  if (!whole) return DataLoss(path + ": ends early");
  return OkStatus();
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
    digests_[part.name] = SaltedSum(part.bytes, 0);
  }
  return OkStatus();
}

Status ParkedState::Read(const std::vector<train::NamedBytes>& state) const {
  for (const train::NamedBytes& part : state) {
    if (part.name == "weights") continue;
    TP_RETURN_IF_ERROR(ReadPart(PathOf(part.name), part.bytes));
    if (SaltedSum(part.bytes, 0) != digests_.at(part.name)) return Changed(PathOf(part.name));
  }
  return OkStatus();
}

Status ParkedState::CopyTo(const std::string& dir) const {
  std::vector<char> piece(kPiece);
  for (const auto& [part, digest] : digests_) {
    std::ifstream in(PathOf(part), std::ios::binary);
    const std::string path = dir + "/" + part + ".bin";
    std::ofstream out(path, std::ios::binary);
    uint64_t sum = 0;
    for (uint64_t words = 0; in; words += kPiece / 8) {
      in.read(piece.data(), kPiece);
      const auto got = static_cast<size_t>(in.gcount());
      sum += SaltedSum(std::as_bytes(std::span(piece.data(), got)), 0, words);
      out.write(piece.data(), in.gcount());
    }
    out.close();
    if (!out) return NotWhole(path);
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
