#include "core/comm/host_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tidepool::comm {
namespace {

constexpr char kFile[] = "group-";

Status CannotUse(const std::string& path, const char* what) {
  return Unavailable(path + ": " + what + " (" + std::strerror(errno) + ")");
}

struct flock FirstByte() {
  struct flock first {};
  first.l_type = F_WRLCK;
  first.l_whence = SEEK_SET;
  first.l_len = 1;
  return first;
}

// What ranks left that were killed before the others had their file: who makes one has its first byte locked
// for as long as it has a name.
void RemoveLeft(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(kFile)) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    struct flock first = FirstByte();
    if (fcntl(fd, F_OFD_GETLK, &first) == 0 && first.l_type == F_UNLCK) (void)unlink(entry.path().c_str());
    (void)close(fd);
  }
}

}  // namespace

StatusOr<HostFile> HostFile::Make(const std::string& folder, int64_t bytes) {
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) return CannotUse(folder, "no random numbers");
  RemoveLeft(folder);
  char name[48];
  std::snprintf(name, sizeof name, "%s%016llx%016llx", kFile, static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  HostFile file;
  file.name_ = name;
  file.path_ = folder + "/" + name;
  file.fd_ = open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (file.fd_ < 0) return CannotUse(folder, "no file can be made there");
  // A page that is missing later would end the process.
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file.fd_, 0, bytes);
  if (error != 0)
    return ResourceExhausted(folder + ": there is no room for " + std::to_string(bytes) + " bytes (" +
                             std::strerror(error) + ")");
  // Of the open file, not of the process: ranks may be threads.
  struct flock first = FirstByte();
  if (fcntl(file.fd_, F_OFD_SETLK, &first) != 0) return CannotUse(file.path_, "cannot be locked");
  const std::string open_file = "/proc/self/fd/" + std::to_string(file.fd_);
  if (linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, file.path_.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return CannotUse(file.path_, "cannot be made");
  file.named_ = true;
  return file;
}

StatusOr<HostFile> HostFile::Open(const std::string& folder, const std::string& name, int64_t bytes) {
  HostFile file;
  file.name_ = name;
  file.path_ = folder + "/" + name;
  file.fd_ = open(file.path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file.fd_ < 0) return NotFound(file.path_ + ": " + std::strerror(errno));
  struct stat st {};
  if (fstat(file.fd_, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size != bytes)
    return NotFound(file.path_ + ": is not the memory of this group");
  return file;
}

HostFile::HostFile(HostFile&& other) noexcept { *this = std::move(other); }
HostFile& HostFile::operator=(HostFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(named_, other.named_);
  return *this;
}
HostFile::~HostFile() {
  Unlink();
  if (fd_ >= 0) (void)close(fd_);
}

void HostFile::Unlink() {
  if (std::exchange(named_, false)) (void)unlink(path_.c_str());
}

}  // namespace tidepool::comm
