#pragma once
// A text file that only grows, line by line. Each append is one write(2), so a reader (or a killed
// process) sees whole lines but for the very last one; opening a file that ends in half a line cuts
// that off. Movable; one thread at a time.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_system.h"

namespace tidepool::observe {

struct AppendOptions {
  FileAccess access = FileAccess::kShared;  // of a new file
  bool cut_torn_line = false;               // text files: remove what follows the last '\n'
};

class AppendFile {
 public:
  // Makes missing folders. Codes as of FileSystem.
  static StatusOr<AppendFile> Open(const std::string& path, const AppendOptions& options = {});

  Status Append(std::string_view bytes) { return file_->Append(bytes); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(std::unique_ptr<WritableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  std::unique_ptr<WritableFile> file_;
  std::string path_;
};

// Missing folders above `path`.
Status MakeFolderOf(const std::string& path);
// The whole of `bytes` under the name `path`, or what was there before; readable by its owner alone. It is
// not synced.
Status ReplaceFile(const std::string& path, std::string_view bytes);
// A small text that says how things are now, for whoever looks. As ReplaceFile, readable by all. Line feeds
// fill it up to whole blocks, so that where the disk has no room for another file, the next text fits into
// the one that is there: then that is written over.
Status ShowInFile(const std::string& path, std::string text);

}  // namespace tidepool::observe
