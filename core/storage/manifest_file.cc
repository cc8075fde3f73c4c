#include "core/storage/manifest_file.h"

#include <algorithm>

#include "core/base/hash.h"

namespace tidepool::storage {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of a file, read at a time

}  // namespace

void FileDigest::Update(std::string_view bytes) {
  if (!partial_.empty()) {
    const size_t take = std::min(8 - partial_.size(), bytes.size());
    partial_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (partial_.size() < 8) return;
    sum_ += SaltedSum(std::as_bytes(std::span(partial_)), 0, words_++);
    partial_.clear();
  }
  const size_t whole = bytes.size() / 8 * 8;
  sum_ += SaltedSum(std::as_bytes(std::span(bytes.data(), whole)), 0, words_);
  words_ += whole / 8;
  partial_ = bytes.substr(whole);
}

uint64_t FileDigest::Finish() const {
  return sum_ + SaltedSum(std::as_bytes(std::span(partial_)), 0, words_);
}

StatusOr<uint64_t> DigestFile(FileSystem& fs, const std::string& path, const std::function<bool()>& go_on) {
  TP_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  FileDigest digest;
  for (int64_t offset = 0;;) {
    TP_ASSIGN_OR_RETURN(const std::string piece, file->ReadAt(offset, kPieceBytes));
    if (piece.empty()) return digest.Finish();
    if (go_on && !go_on()) return Status(StatusCode::kCancelled, path + ": was called off");
    digest.Update(std::string_view(piece));
    offset += static_cast<int64_t>(piece.size());
  }
}

}  // namespace tidepool::storage
