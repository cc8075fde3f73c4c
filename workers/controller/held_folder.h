#pragma once
// A folder that is worked in, held open: it is found again where somebody has moved it to meanwhile. Movable;
// any thread, but the system calls may wait for the disk.
//
// `rm -r` leaves a folder in which files are made while it is at work, and which of them it takes first is
// anybody's guess. So a folder without a file that it always has counts as removed.

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::workers {

class HeldFolder {
 public:
  // `path` absolute. `always`: paths in it of files that nobody but a person deletes. Errors of FileError.
  static StatusOr<HeldFolder> Open(const std::string& path, std::vector<std::string> always = {});
  HeldFolder(HeldFolder&& other) noexcept;
  HeldFolder& operator=(HeldFolder&&) = delete;
  ~HeldFolder();

  // Nothing while the folder is at its path with those files, or the disk does not say. Else where it is now;
  // empty: it, or one of the files, was removed, or it was taken to another disk. requires that the files
  // have been made
  [[nodiscard]] std::optional<std::string> MovedTo() const;

 private:
  HeldFolder(std::string path, std::vector<std::string> always, int fd)
      : path_(std::move(path)), always_(std::move(always)), fd_(fd) {}
  std::string path_;
  std::vector<std::string> always_;
  int fd_;
};

}  // namespace tidepool::workers
