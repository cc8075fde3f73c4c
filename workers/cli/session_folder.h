#pragma once
// A temporary folder for what this process exchanges with a worker that it started: in memory where there is
// such a place, because its files need not survive it and syncing them takes time. It goes with the object.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/status.h"

namespace tidepool::workers {

class SessionFolder {
 public:
  static StatusOr<SessionFolder> Make() {
    std::error_code ignored;
    const bool memory = std::filesystem::is_directory("/dev/shm", ignored) && access("/dev/shm", W_OK) == 0;
    std::string pattern =
        ((memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
         "tidepool-XXXXXX")
            .string();
    if (mkdtemp(pattern.data()) == nullptr) return Unavailable(pattern + ": no temporary folder can be made");
    return SessionFolder(std::move(pattern));
  }
  SessionFolder(SessionFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SessionFolder& operator=(SessionFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~SessionFolder() {
    std::error_code error;  // what cannot be removed stays
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit SessionFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace tidepool::workers
