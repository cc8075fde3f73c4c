#pragma once
// A file in a host's shared memory for the ranks of one group, which is found by its name for as long as they
// look for it, and then belongs to those that have it open: it goes with the last of them, however it ends.

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tidepool::comm {

class HostFile {
 public:
  // A new one of zeros, in a folder that nobody but this user can enter. What others left there whose process
  // ended before all had theirs is removed. kResourceExhausted: shared memory has no room for it.
  // kUnavailable: the folder cannot be used.
  static StatusOr<HostFile> Make(const std::string& folder, int64_t bytes);
  // For another rank: the one that has this name. kNotFound: none of so many bytes has it.
  static StatusOr<HostFile> Open(const std::string& folder, const std::string& name, int64_t bytes);
  HostFile(HostFile&& other) noexcept;
  HostFile& operator=(HostFile&& other) noexcept;
  ~HostFile();

  [[nodiscard]] const std::string& name() const { return name_; }  // in its folder; no other ever has it
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_; }
  void Unlink();  // nobody else can open it any more

 private:
  HostFile() = default;
  std::string name_, path_;
  int fd_ = -1;
  bool named_ = false;  // by this rank
};

}  // namespace tidepool::comm
