#include "core/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tidepool::files {
namespace {

// Opens a regular file for reading. O_NONBLOCK: a FIFO named as a model must not hang the caller.
StatusOr<int> OpenRegular(const std::string& path, int64_t* size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "cannot open for reading", errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return SystemError(path, "cannot stat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return InvalidArgument(path + ": is no regular file; give the path of a file");
  }
  *size = info.st_size;
  return fd;
}

}  // namespace

Status SystemError(const std::string& path, std::string_view what, int error_number) {
  std::string message = path + ": " + std::string(what) + ": " + std::strerror(error_number);
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return NotFound(std::move(message));
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDenied(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return ResourceExhausted(std::move(message));
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
      return InvalidArgument(std::move(message));
    case EEXIST:
      return AlreadyExists(std::move(message));
    default:
      return Internal(std::move(message));
  }
}

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  int64_t size = 0;
  TP_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &size));
  MappedFile file;
  file.path_ = path;
  if (size > 0) {
    void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (data == MAP_FAILED) return SystemError(path, "cannot map", error);
    file.data_ = static_cast<const std::byte*>(data);
    file.size_ = static_cast<size_t>(size);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Discard(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  // An error would mean that the pages stay: nothing is wrong then.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  int64_t size = 0;
  TP_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &size));
  if (size > max_bytes) {
    ::close(fd);
    return ResourceExhausted(path + ": has " + std::to_string(size) + " bytes, at most " +
                             std::to_string(max_bytes) + " are read");
  }
  std::string content(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    // waits: it is a file on a disk
    const ssize_t n = ::read(fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(fd);
      return SystemError(path, "cannot read", error);
    }
    if (n == 0) break;  // it was shortened since fstat
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  content.resize(done);
  return content;
}

Status WriteSmallFile(const std::string& path, std::string_view content) {
  TP_ASSIGN_OR_RETURN(PendingFile file, PendingFile::Create(path));
  TP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(content.data(), content.size()))));
  return file.Commit();
}

StatusOr<PendingFile> PendingFile::Create(const std::string& path) {
  PendingFile file;
  file.path_ = path;
  file.fd_ = ::open((path + ".partial").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return SystemError(path + ".partial", "cannot create", errno);
  return file;
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

PendingFile::~PendingFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink((path_ + ".partial").c_str());
}

Status PendingFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path_ + ".partial", "cannot write", errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status PendingFile::Commit() {
  const std::string partial = path_ + ".partial";
  if (::fsync(fd_) != 0) return SystemError(partial, "cannot sync", errno);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) {
    const int error = errno;
    ::unlink(partial.c_str());
    return SystemError(partial, "cannot close", error);
  }
  if (::rename(partial.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial.c_str());
    return SystemError(path_, "cannot rename into place", error);
  }
  return OkStatus();
}

}  // namespace tidepool::files
