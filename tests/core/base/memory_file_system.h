#pragma once
// A file system in memory for tests and the simulator: the strict reading of POSIX durability, with
// faults drawn from a seed. What RealFileSystem may lose in a power cut, this one does lose.
//
// Crash() is a power cut followed by a boot:
//   - bytes appended since a file's last Sync are kept, lost, cut short, or kept with holes of zeros
//     (pages reach the disk in any order); synced bytes always stay;
//   - names changed in a folder since its last SyncDir: a prefix of those changes, in order, is kept
//     (a rename inside one folder is one change; between folders it is two);
//   - a file with several names (Link) is one file: all of them lose the same bytes;
//   - handles and locks are gone; using an old handle is kUnavailable.
// Kill() is the death of the process alone: contents stay, handles and locks are gone.
//
// Operations that change something (all but reads, Stat, List, FreeBytes) are numbered from 0, so that a
// test can crash at each of them in turn. Relative and absolute paths name the same tree; "." and empty
// parts are skipped. Thread-safe.

#include <memory>

#include "core/base/file_system.h"
#include "core/base/time.h"

namespace tidepool {

struct MemoryFaults {
  uint64_t seed = 1;
  int64_t capacity_bytes = -1;  // ENOSPC when contents and reservations would exceed it; -1: no limit
  int64_t crash_at_operation =
      -1;  // this one is done in part or not at all, it and all later ones fail; -1: never
  int64_t fail_operation = -1;  // this one alone fails with `fail_errno`, changing nothing
  int fail_errno = 5;           // EIO
  double error_chance = 0;      // of EIO, for each operation
  Duration operation_time{0};   // added to busy() by each operation: a slow disk, in virtual time
};

class MemoryFileSystem : public FileSystem {
 public:
  explicit MemoryFileSystem(const MemoryFaults& faults = {});
  ~MemoryFileSystem() override;

  // Replaces the faults and starts counting operations from 0 again.
  void SetFaults(const MemoryFaults& faults);
  [[nodiscard]] int64_t operations() const;  // counted since construction or SetFaults
  [[nodiscard]] bool crashed() const;        // crash_at_operation was reached and Crash() not yet called
  [[nodiscard]] Duration busy() const;
  void Crash();
  void Kill();
  // Changes one byte in place, durable at once: a disk that rots. requires a file of that size.
  void FlipByte(const std::string& path, int64_t offset, uint8_t mask = 0xff);

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

  struct Disk;  // of the implementation

 private:
  std::shared_ptr<Disk> disk_;  // shared with the handles, which may outlive this object
};

}  // namespace tidepool
