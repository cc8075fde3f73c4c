#include "workers/controller/held_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/base/file_system.h"

namespace tidepool::workers {

StatusOr<HeldFolder> HeldFolder::Open(const std::string& path, std::vector<std::string> always) {
  const int fd = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "open", path);
  return HeldFolder(path, std::move(always), fd);
}

HeldFolder::HeldFolder(HeldFolder&& other) noexcept
    : path_(std::move(other.path_)), always_(std::move(other.always_)), fd_(std::exchange(other.fd_, -1)) {}

HeldFolder::~HeldFolder() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<std::string> HeldFolder::MovedTo() const {
  struct stat there {
  }, held{};
  if (::fstat(fd_, &held) != 0) return std::nullopt;
  if (::stat(path_.c_str(), &there) == 0) {
    if (there.st_dev == held.st_dev && there.st_ino == held.st_ino) {
      const bool whole = std::ranges::none_of(always_, [&](const std::string& file) {
        struct stat ignored {};
        return ::fstatat(fd_, file.c_str(), &ignored, 0) != 0 && errno == ENOENT;
      });
      return whole ? std::nullopt : std::optional<std::string>("");
    }
  } else if (errno != ENOENT && errno != ENOTDIR) {
    return std::nullopt;
  }
  std::error_code error;
  const auto now = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd_), error);
  // Of what was removed the kernel says "/the/old/path (deleted)".
  if (error || ::stat(now.c_str(), &there) != 0 || there.st_ino != held.st_ino || there.st_dev != held.st_dev)
    return "";
  return now.string();
}

}  // namespace tidepool::workers
