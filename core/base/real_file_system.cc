#include "core/base/real_file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

namespace tidepool {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

StatusOr<Descriptor> Open(const std::string& path, int flags, std::string_view doing, mode_t mode = 0644) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return FileError(errno, doing, path);
  return Descriptor(fd);
}

mode_t ModeOf(FileAccess access) { return access == FileAccess::kOwnerOnly ? 0600 : 0644; }

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(Descriptor fd, std::string path, int64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), size_);
      if (n < 0) {
        if (errno == EINTR) continue;
        return FileError(errno, "write", path_);
      }
      size_ += n;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return OkStatus();
  }

  Status Sync() override {
    if (::fdatasync(fd_.get()) != 0) return FileError(errno, "make writes durable", path_);
    return OkStatus();
  }

  Status Preallocate(int64_t bytes) override {
    int failed = 0;
    do {
      failed = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, size_, bytes) != 0 ? errno : 0;
    } while (failed == EINTR);
    if (failed == 0 || failed == EOPNOTSUPP || failed == ENOSYS || failed == EINVAL) return OkStatus();
    return FileError(failed, "reserve " + std::to_string(bytes) + " bytes", path_);
  }

  Status Truncate(int64_t size) override {
    TP_CHECK(size >= 0 && size <= size_) << path_ << ": " << size << " of " << size_;
    if (::ftruncate(fd_.get(), size) != 0) return FileError(errno, "cut", path_);
    size_ = size;
    return OkStatus();
  }

  [[nodiscard]] int64_t size() const override { return size_; }

 private:
  Descriptor fd_;
  std::string path_;
  int64_t size_;
};

class RealReadableFile : public ReadableFile {
 public:
  RealReadableFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  StatusOr<std::string> ReadAt(int64_t offset, int64_t bytes) override {
    TP_CHECK(offset >= 0 && bytes >= 0) << path_ << ": " << offset << ", " << bytes;
    // A size from a damaged record must not become an allocation: never more than the file has.
    TP_ASSIGN_OR_RETURN(const int64_t size, Size());
    std::string out;
    out.resize(static_cast<size_t>(std::clamp<int64_t>(size - offset, 0, bytes)));
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          ::pread(fd_.get(), out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
      if (n < 0) {
        if (errno == EINTR) continue;
        return FileError(errno, "read", path_);
      }
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    out.resize(done);
    return out;
  }

  StatusOr<int64_t> Size() override {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return FileError(errno, "read the size", path_);
    return static_cast<int64_t>(info.st_size);
  }

 private:
  Descriptor fd_;
  std::string path_;
};

// What Lock wrote into a lock file.
std::string HolderIn(const Descriptor& fd) {
  std::string holder(256, '\0');
  const ssize_t n = ::pread(fd.get(), holder.data(), holder.size(), 0);
  holder.resize(n > 0 ? static_cast<size_t>(n) : 0);
  while (!holder.empty() && (holder.back() == '\n' || holder.back() == '\0')) holder.pop_back();
  return holder;
}

// Whether `path` still leads to the open file.
bool LeadsTo(const std::string& path, int fd) {
  struct stat open {
  }, there{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

class RealFileLock : public FileLock {
 public:
  explicit RealFileLock(Descriptor fd) : fd_(std::move(fd)) {}
  [[nodiscard]] bool IsAt(const std::string& path) const override { return LeadsTo(path, fd_.get()); }

 private:
  Descriptor fd_;
};

StatusOr<std::unique_ptr<WritableFile>> Writable(const std::string& path, int flags, FileAccess access,
                                                 std::string_view doing) {
  TP_ASSIGN_OR_RETURN(Descriptor fd, Open(path, flags, doing, ModeOf(access)));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return FileError(errno, "read the size", path);
  return std::unique_ptr<WritableFile>(
      std::make_unique<RealWritableFile>(std::move(fd), path, static_cast<int64_t>(info.st_size)));
}

}  // namespace

StatusOr<std::unique_ptr<WritableFile>> RealFileSystem::OpenForAppend(const std::string& path,
                                                                      FileAccess access) {
  return Writable(path, O_WRONLY | O_CREAT, access, "open for writing");
}

StatusOr<std::unique_ptr<WritableFile>> RealFileSystem::CreateNew(const std::string& path,
                                                                  FileAccess access) {
  return Writable(path, O_WRONLY | O_CREAT | O_EXCL, access, "create");
}

StatusOr<std::unique_ptr<ReadableFile>> RealFileSystem::OpenForRead(const std::string& path) {
  // O_NONBLOCK: a FIFO in the place of a file must not hang the caller.
  TP_ASSIGN_OR_RETURN(Descriptor fd, Open(path, O_RDONLY | O_NONBLOCK, "open for reading"));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return FileError(errno, "open for reading", path);
  if (S_ISDIR(info.st_mode)) return FileError(EISDIR, "open for reading", path);
  if (S_ISFIFO(info.st_mode)) return InvalidArgument(path + ": is no regular file; give the path of a file");
  return std::unique_ptr<ReadableFile>(std::make_unique<RealReadableFile>(std::move(fd), path));
}

StatusOr<FileInfo> RealFileSystem::Stat(const std::string& path) {
  struct stat info {};
  FileInfo out;
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return out;
    return FileError(errno, "look at", path);
  }
  out.is_link = S_ISLNK(info.st_mode);
  if (out.is_link && ::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return out;  // a dangling link: nothing there
    return FileError(errno, "look at", path);
  }
  out.exists = true;
  out.is_directory = S_ISDIR(info.st_mode);
  out.bytes = static_cast<int64_t>(info.st_size);
  return out;
}

StatusOr<std::vector<std::string>> RealFileSystem::List(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  if (error) return FileError(error.value(), "list folder", dir);
  std::sort(names.begin(), names.end());
  return names;
}

Status RealFileSystem::MakeDirectory(const std::string& dir) {
  if (::mkdir(dir.c_str(), 0755) != 0) return FileError(errno, "create folder", dir);
  return OkStatus();
}

Status RealFileSystem::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return FileError(errno, "rename to " + to, from);
  return OkStatus();
}

Status RealFileSystem::Link(const std::string& from, const std::string& to) {
  // Follows a symbolic link: folders of a download cache hold nothing else.
  if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return FileError(errno, "give the name " + to + " to", from);
  return OkStatus();
}

Status RealFileSystem::SyncFile(const std::string& path) {
  // A linked file of someone else may be read-only: a descriptor for reading is enough for fsync.
  TP_ASSIGN_OR_RETURN(const Descriptor fd, Open(path, O_RDONLY | O_NONBLOCK, "open"));
  if (::fdatasync(fd.get()) != 0) return FileError(errno, "make writes durable", path);
  return OkStatus();
}

Status RealFileSystem::RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return FileError(errno, "remove", path);
  return OkStatus();
}

Status RealFileSystem::RemoveDirectory(const std::string& dir) {
  if (::rmdir(dir.c_str()) != 0) return FileError(errno, "remove folder", dir);
  return OkStatus();
}

Status RealFileSystem::SyncDir(const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const Descriptor fd, Open(dir, O_RDONLY | O_DIRECTORY, "open folder"));
  // Some network file systems refuse fsync of a folder (EINVAL); their renames are durable on reply.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return FileError(errno, "make names durable in", dir);
  return OkStatus();
}

std::optional<std::string> RealFileSystem::LockedBy(const std::string& path) {
  const auto fd = Open(path, O_RDONLY, "open lock file");
  if (!fd.ok()) return std::nullopt;
  if (::flock(fd->get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return std::nullopt;
  return HolderIn(*fd);  // closing gives back what was tried
}

StatusOr<std::unique_ptr<FileLock>> RealFileSystem::Lock(const std::string& path, const std::string& who) {
  TP_ASSIGN_OR_RETURN(Descriptor fd, Open(path, O_RDWR | O_CREAT, "open lock file"));
  int tries = 20;  // 100 ms: somebody may look who has it (IsLocked)
  while (true) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (LeadsTo(path, fd.get())) break;
      // The folder was moved while we waited: who moved it holds, or will hold, the lock that is there now.
      TP_ASSIGN_OR_RETURN(Descriptor now, Open(path, O_RDWR | O_CREAT, "open lock file"));
      fd = std::move(now);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return FileError(errno, "lock", path);
    if (--tries > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    const std::string holder = HolderIn(fd);
    return FailedPrecondition(path + ": locked by " + (holder.empty() ? "another process" : holder) +
                              "; wait until it ends or stop it, or use another folder");
  }
  // What a later comer is told. The lock does not depend on it: on a disk that is full it is not written, and
  // who wants to make room there needs the lock.
  const std::string text = who + "\n";
  if (::pwrite(fd.get(), text.data(), text.size(), 0) < 0 ||
      ::ftruncate(fd.get(), static_cast<off_t>(text.size())) != 0)
    (void)::ftruncate(fd.get(), 0);
  return std::unique_ptr<FileLock>(std::make_unique<RealFileLock>(std::move(fd)));
}

StatusOr<int64_t> RealFileSystem::FreeBytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return FileError(errno, "read the free space of", path);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace tidepool
