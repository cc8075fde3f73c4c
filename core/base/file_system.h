#pragma once
// The one door to disk for what must survive a crash: journal, payload, checkpoints, run folders.
//
// Two implementations: RealFileSystem (POSIX) and MemoryFileSystem (in memory, with seeded faults and
// power cuts), so that every recovery path can be tested at every operation. The durability rules are
// those of POSIX read strictly: bytes are durable after WritableFile::Sync, a name (created, renamed,
// removed) only after SyncDir of the folder that holds it.
//
// Errors of all functions, with the path and what to do in the message (FileError):
//   kNotFound, kAlreadyExists   no such file or folder / it is there already
//   kPermissionDenied           owner or mode forbid it
//   kResourceExhausted          disk full, quota, too many open files
//   kFailedPrecondition         read-only file system, folder not empty, not a folder, lock held
//   kDataLoss                   the device reported an I/O error
// A FileSystem may be used from several threads; a file handle from one at a time, but
// ReadableFile::ReadAt from several.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tidepool {

// A file that is written at its end. Destruction closes it; what was not synced is not durable.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all of `bytes` or fails; after a failure the file may hold a part of them (see Truncate).
  virtual Status Append(std::string_view bytes) = 0;
  // fdatasync: contents and size are durable when it returns ok. After a failure nothing may be
  // assumed about unsynced bytes, and a repeated Sync proves nothing: treat the file as broken.
  virtual Status Sync() = 0;
  // Reserves space for `bytes` more than the present size without changing the size, so that later
  // appends within them do not fail for lack of space. Ok where the file system cannot reserve.
  virtual Status Preallocate(int64_t bytes) = 0;
  // Cuts to `size` (<= size()) and gives reserved space back.
  virtual Status Truncate(int64_t size) = 0;
  [[nodiscard]] virtual int64_t size() const = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Up to `bytes` bytes from `offset`; fewer only at the end of the file.
  virtual StatusOr<std::string> ReadAt(int64_t offset, int64_t bytes) = 0;
  // Now, not when it was opened: a file may grow while it is read.
  virtual StatusOr<int64_t> Size() = 0;
};

// Held until destruction or the end of the process, however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // `path` leads to what is locked. False: another caller has taken the lock (TakeLock), or the name is gone.
  [[nodiscard]] virtual bool IsAt(const std::string& path) const = 0;
};

struct FileInfo {
  bool exists = false;
  bool is_directory = false;  // also of a link to a folder
  bool is_link = false;
  int64_t bytes = 0;
};

// Who may read a new file. Owner only (0600): files with tokens or text of samples, tokens of a job.
enum class FileAccess : uint8_t { kShared = 0, kOwnerOnly = 1 };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Opens for writing at the end; makes the file if it is not there.
  virtual StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path,
                                                                FileAccess access = FileAccess::kShared) = 0;
  // Makes a new file; kAlreadyExists if the name is taken.
  virtual StatusOr<std::unique_ptr<WritableFile>> CreateNew(const std::string& path,
                                                            FileAccess access = FileAccess::kShared) = 0;
  virtual StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) = 0;

  // Follows links. kOk with exists = false where there is nothing.
  virtual StatusOr<FileInfo> Stat(const std::string& path) = 0;
  // Names (not paths) in a folder, sorted bytewise, without "." and "..".
  virtual StatusOr<std::vector<std::string>> List(const std::string& dir) = 0;
  // kAlreadyExists if the name is taken; the parent must be there.
  virtual Status MakeDirectory(const std::string& dir) = 0;
  // Atomic. A file in the way is replaced; a folder only if it is empty.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Gives the file `from` (what it links to) a second name (a hard link): the bytes stay until the last name
  // goes. kAlreadyExists;
  // kFailedPrecondition, kPermissionDenied, kInternal where the file system has no such thing, or not for
  // this file (another disk, another owner).
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  virtual Status RemoveFile(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& dir) = 0;  // an empty one
  // Durable contents of a file that someone else wrote; it may be one that may only be read.
  virtual Status SyncFile(const std::string& path) = 0;
  // Makes the names in `dir` durable.
  virtual Status SyncDir(const std::string& dir) = 0;
  // Takes an exclusive lock on `path` (made if need be, left behind). kFailedPrecondition while another
  // holder, in this process or another, is alive; the message carries the holder's own words (`who`,
  // such as "controller pid 123 on host a").
  virtual StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, const std::string& who) = 0;
  // Bytes that an ordinary user may still write to the disk of `path` (which exists).
  virtual StatusOr<int64_t> FreeBytes(const std::string& path) = 0;

  // --- made of the above ---
  [[nodiscard]] bool Exists(const std::string& path);  // errors count as "no"
  StatusOr<int64_t> Size(const std::string& path);     // kNotFound
  // The whole file; kResourceExhausted if it is larger than `max_bytes`, before anything is allocated.
  StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
  // All or nothing, also over a crash: writes `path`.tmp, syncs, renames, syncs the folder.
  Status WriteFile(const std::string& path, std::string_view bytes, FileAccess access = FileAccess::kShared);
  // Makes `dir` and its missing parents, each durable. Ok if it is there.
  Status MakeDirectories(const std::string& dir);
  // Removes a file or a folder with all it holds. Ok if there is nothing. Symbolic links are removed, not
  // followed.
  Status RemoveTree(const std::string& path);
  // The lock of `path` is this caller's from now on, whoever has the one that is there: that one is of a file
  // which has lost its name. kFailedPrecondition: another caller is at it just now.
  StatusOr<std::unique_ptr<FileLock>> TakeLock(const std::string& path, const std::string& who);
  // Every file under `dir`, as paths relative to it with '/', sorted.
  StatusOr<std::vector<std::string>> ListTree(const std::string& dir);
};

// "a" + "b" -> "a/b"; a trailing '/' of `dir` is kept single.
std::string JoinPath(std::string_view dir, std::string_view name);
std::string ParentPath(std::string_view path);  // "a/b" -> "a", "a" -> ".", "/a" -> "/"
std::string BaseName(std::string_view path);    // "a/b/" -> "b"

// A status for errno `error` met while `doing` ("write", "create folder") something to `path`, saying
// what to do about it.
Status FileError(int error, std::string_view doing, std::string_view path);

}  // namespace tidepool
