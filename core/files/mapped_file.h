#pragma once
// A regular file mapped read-only; whole small files read or written at once; large ones written in pieces.
// Errors are those of FileSystem.
//
// A mapped file must not be shortened by others while it is open: the kernel would end the process
// at the first touch of a page that is gone. Model folders do not change while they are read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_system.h"

namespace tidepool::files {

class MappedFile {
 public:
  // kInvalidArgument for what is no regular file.
  static StatusOr<MappedFile> Open(const std::string& path);

  // Lets go of the whole pages inside `part` of bytes(), which this process no longer needs: they do not
  // count as its memory any more, and are read from the file again if they are touched.
  void Discard(std::span<const std::byte> part) const;
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), data_.get_deleter().size}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct Unmap {
    size_t size;
    void operator()(const std::byte* data) const;
  };
  MappedFile() = default;
  std::unique_ptr<const std::byte, Unmap> data_;
  std::string path_;
};

// The whole file; kResourceExhausted if it is larger than `max_bytes`.
StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// Whole or not at all.
Status WriteSmallFile(const std::string& path, std::string_view content);

// A new file that gets its name only when it is complete: bytes go to `path`.partial, Commit syncs
// and renames, and a file that is not committed is removed.
class PendingFile {
 public:
  static StatusOr<PendingFile> Create(const std::string& path);
  PendingFile(PendingFile&&) = default;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();

  // kResourceExhausted when the disk is full.
  Status Write(std::span<const std::byte> bytes);
  Status Commit();  // once

 private:
  explicit PendingFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::unique_ptr<WritableFile> file_;  // until Commit
};

}  // namespace tidepool::files
