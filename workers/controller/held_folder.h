#pragma once
// A folder that is worked in, held open: it is found again where somebody has moved it to meanwhile. Movable;
// any thread, but the system calls may wait for the disk.

#include <optional>
#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

class HeldFolder {
 public:
  // `path` absolute. Errors of FileError.
  static StatusOr<HeldFolder> Open(const std::string& path);
  HeldFolder(HeldFolder&& other) noexcept;
  HeldFolder& operator=(HeldFolder&&) = delete;
  ~HeldFolder();

  // Nothing while the folder is at its path, or the disk does not say. Else where it is now; empty: it was
  // removed, or taken to another disk.
  [[nodiscard]] std::optional<std::string> MovedTo() const;

 private:
  HeldFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

}  // namespace tidepool::workers
