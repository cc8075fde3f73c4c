#include "core/observe/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tidepool::observe {
namespace {

// Length of the file up to and including its last '\n'.
int64_t WholeLines(int fd, int64_t size) {
  std::array<char, 4096> buffer{};
  for (int64_t end = size; end > 0;) {
    const int64_t start = std::max<int64_t>(0, end - static_cast<int64_t>(buffer.size()));
    const ssize_t n = ::pread(fd, buffer.data(), static_cast<size_t>(end - start), start);
    if (n <= 0) return size;
    for (ssize_t i = n - 1; i >= 0; --i) {
      if (buffer[static_cast<size_t>(i)] == '\n') return start + i + 1;
    }
    end = start;
  }
  return 0;
}

}  // namespace

Status FileError(const std::string& path, std::string_view what, int error) {
  const std::string message = path + ": " + std::string(what) + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
      return NotFound(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDenied(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(message);
    default:
      return Unavailable(message);
  }
}

StatusOr<AppendFile> AppendFile::Open(const std::string& path, const AppendOptions& options) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return FileError(folder.string(), "cannot make this folder", error.value());
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, options.mode);
  if (fd < 0) return FileError(path, "cannot be opened for writing", errno);
  AppendFile file(fd, path);
  if (options.cut_torn_line) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return FileError(path, "cannot be read", errno);
    const int64_t whole = WholeLines(fd, info.st_size);
    if (whole != info.st_size && ::ftruncate(fd, whole) != 0)
      return FileError(path, "cannot be shortened", errno);
  }
  return file;
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status AppendFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path_, "cannot be written", errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

StatusOr<std::string> ReadWhole(const std::string& path, int64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "cannot be opened", errno);
  std::string text;
  std::array<char, 65536> buffer{};
  ssize_t n = 0;
  while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) {  // waits: it is a file on a disk
    text.append(buffer.data(), static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > max_bytes) break;
  }
  const int error = errno;
  ::close(fd);
  if (n < 0) return FileError(path, "cannot be read", error);
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    return ResourceExhausted(path + ": has more than " + std::to_string(max_bytes) +
                             " bytes, the most that is read");
  }
  return text;
}

}  // namespace tidepool::observe
