#pragma once
// POSIX files. Stateless; thread-safe. Descriptors are close-on-exec, so children inherit neither files
// nor locks.

#include <optional>

#include "core/base/file_system.h"

namespace tidepool {

class RealFileSystem : public FileSystem {
 public:
  // Whether a process holds the lock of this file (Lock). It is tried for a moment, for which Lock waits.
  static bool IsLocked(const std::string& path) { return LockedBy(path).has_value(); }
  // Who that is, in the words that Lock was given; nullopt: nobody.
  static std::optional<std::string> LockedBy(const std::string& path);

  StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path,
                                                        FileAccess access = FileAccess::kShared) override;
  StatusOr<std::unique_ptr<WritableFile>> CreateNew(const std::string& path,
                                                    FileAccess access = FileAccess::kShared) override;
  StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  StatusOr<FileInfo> Stat(const std::string& path) override;
  StatusOr<std::vector<std::string>> List(const std::string& dir) override;
  Status MakeDirectory(const std::string& dir) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status RemoveFile(const std::string& path) override;
  Status SyncFile(const std::string& path) override;
  Status RemoveDirectory(const std::string& dir) override;
  Status SyncDir(const std::string& dir) override;
  StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, const std::string& who) override;
  StatusOr<int64_t> FreeBytes(const std::string& path) override;
};

}  // namespace tidepool
