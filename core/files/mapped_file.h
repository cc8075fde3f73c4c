#pragma once
// A regular file mapped read-only, and whole small files read or written at once.
//
// A mapped file must not be shortened by others while it is open: the kernel would end the process
// at the first touch of a page that is gone. Model folders do not change while they are read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool::files {

class MappedFile {
 public:
  // kNotFound, kPermissionDenied, or kInvalidArgument for what is no regular file.
  static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Lets go of the whole pages inside `part` of bytes(), which this process no longer needs: they do not
  // count as its memory any more, and are read from the file again if they are touched.
  void Discard(std::span<const std::byte> part) const;
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// The whole file; kResourceExhausted if it is larger than `max_bytes`.
StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// Writes beside `path` and renames, so that `path` is never seen half written.
Status WriteSmallFile(const std::string& path, std::string_view content);

// A new file that gets its name only when it is complete: bytes go to `path`.partial, Commit syncs
// and renames, and a file that is not committed is removed.
class PendingFile {
 public:
  static StatusOr<PendingFile> Create(const std::string& path);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  PendingFile(const PendingFile&) = delete;
  ~PendingFile();

  // kResourceExhausted when the disk is full.
  Status Write(std::span<const std::byte> bytes);
  Status Commit();  // once

 private:
  PendingFile() = default;
  int fd_ = -1;
  std::string path_;
};

// errno as a Status whose message is "<path>: <what>: <system's words>".
Status SystemError(const std::string& path, std::string_view what, int error_number);

}  // namespace tidepool::files
