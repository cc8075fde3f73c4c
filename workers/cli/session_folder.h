#pragma once
// A temporary folder for what this process exchanges with a worker that it started: in memory where there is
// such a place, because its files need not survive it and syncing them takes time. It goes with the object.
// Of a process that was killed it stays, until the next one is made: its lock is free then.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/status.h"

namespace tidepool::workers {

class SessionFolder {
 public:
  static StatusOr<SessionFolder> Make() {
    std::error_code ignored;
    const bool memory = std::filesystem::is_directory("/dev/shm", ignored) && access("/dev/shm", W_OK) == 0;
    return MakeIn(memory ? "/dev/shm" : std::filesystem::temp_directory_path().string());
  }
  static StatusOr<SessionFolder> MakeIn(const std::string& parent) {
    RemoveLeftBehind(parent);
    std::string pattern = (std::filesystem::path(parent) / (std::string(kPrefix) + "XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr) return Unavailable(pattern + ": no temporary folder can be made");
    const int fd = Locked(pattern);
    if (fd < 0) return Unavailable(pattern + ": cannot be locked");
    return SessionFolder(std::move(pattern), fd);
  }
  SessionFolder(SessionFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), fd_(std::exchange(other.fd_, -1)) {}
  SessionFolder& operator=(SessionFolder&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SessionFolder() {
    std::error_code error;  // what cannot be removed stays
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static constexpr std::string_view kPrefix = "tidepool-session-";

  SessionFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  // A descriptor that has the lock of the folder; -1: somebody else has it, or there is no folder.
  static int Locked(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
  }
  static void RemoveLeftBehind(const std::string& parent) {
    namespace fs = std::filesystem;
    std::error_code error;  // what cannot be looked at or removed stays
    for (const auto& entry : fs::directory_iterator(parent, error)) {
      struct stat info {};
      const std::string path = entry.path().string();
      if (!entry.path().filename().string().starts_with(kPrefix) || ::lstat(path.c_str(), &info) != 0 ||
          info.st_uid != ::geteuid())
        continue;
      // One that was made just now may not be locked yet.
      const auto made = fs::last_write_time(entry.path(), error);
      if (error || fs::file_time_type::clock::now() - made < std::chrono::minutes(1)) continue;
      if (const int fd = Locked(path); fd >= 0) {
        fs::remove_all(entry.path(), error);
        ::close(fd);
      }
    }
  }

  std::string path_;
  int fd_;  // has the lock
};

}  // namespace tidepool::workers
