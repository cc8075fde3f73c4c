#include "core/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/real_file_system.h"

namespace tidepool::files {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO named as a model must not hang the caller.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, "open for reading", path);
  MappedFile file;
  file.path_ = path;
  struct stat info {};
  void* data = MAP_FAILED;
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && info.st_size > 0)
    data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (!regular) return InvalidArgument(path + ": is no regular file; give the path of a file");
  if (info.st_size == 0) return file;
  if (data == MAP_FAILED) return FileError(error, "map", path);
  file.data_ = {static_cast<const std::byte*>(data), Unmap{static_cast<size_t>(info.st_size)}};
  return file;
}

void MappedFile::Unmap::operator()(const std::byte* data) const {
  ::munmap(const_cast<std::byte*>(data), size);
}

void MappedFile::Discard(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  // An error would mean that the pages stay: nothing is wrong then.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  return RealFileSystem().ReadFile(path, max_bytes);
}

Status WriteSmallFile(const std::string& path, std::string_view content) {
  return RealFileSystem().WriteFile(path, content);
}

StatusOr<PendingFile> PendingFile::Create(const std::string& path) {
  PendingFile pending(path);
  RealFileSystem fs;
  TP_RETURN_IF_ERROR(fs.RemoveTree(path + ".partial"));
  TP_ASSIGN_OR_RETURN(pending.file_, fs.CreateNew(path + ".partial"));
  return pending;
}

PendingFile::~PendingFile() {
  // What cannot be removed is left over, and replaced by the next file of this name.
  if (file_ != nullptr) (void)RealFileSystem().RemoveFile(path_ + ".partial");
}

Status PendingFile::Write(std::span<const std::byte> bytes) {
  return file_->Append({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Status PendingFile::Commit() {
  TP_RETURN_IF_ERROR(file_->Sync());
  TP_RETURN_IF_ERROR(RealFileSystem().Rename(path_ + ".partial", path_));
  file_.reset();
  return OkStatus();
}

}  // namespace tidepool::files
