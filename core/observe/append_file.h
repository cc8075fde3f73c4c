#pragma once
// A text file that only grows, line by line. Each append is one write(2), so a reader (or a killed
// process) sees whole lines but for the very last one; opening a file that ends in half a line cuts
// that off. Movable; one thread at a time.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool::observe {

struct AppendOptions {
  int mode = 0644;             // permissions of a new file
  bool cut_torn_line = false;  // text files: remove what follows the last '\n'
};

class AppendFile {
 public:
  // Makes missing folders. kPermissionDenied, kResourceExhausted (disk full), kUnavailable.
  static StatusOr<AppendFile> Open(const std::string& path, const AppendOptions& options = {});
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  Status Append(std::string_view bytes);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

// Status for an errno of a file operation: "path: what: No space left on device".
Status FileError(const std::string& path, std::string_view what, int error);

// Whole content. kNotFound; kResourceExhausted beyond max_bytes.
StatusOr<std::string> ReadWhole(const std::string& path, int64_t max_bytes);

}  // namespace tidepool::observe
