#include "core/base/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tidepool {

std::string JoinPath(std::string_view dir, std::string_view name) {
  if (dir.empty()) return std::string(name);
  std::string path(dir);
  if (path.back() != '/') path.push_back('/');
  return path.append(name);
}

std::string ParentPath(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

std::string BaseName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

Status FileError(int error, std::string_view doing, std::string_view path) {
  const auto say = [&](std::string_view what) {
    return std::string(path) + ": cannot " + std::string(doing) + ": " + std::string(what);
  };
  switch (error) {
    case ENOENT:
      return NotFound(say("no such file or folder; check the path"));
    case EEXIST:
      return AlreadyExists(say("the name is taken; choose another, or move away what is there"));
    case EACCES:
    case EPERM:
      return PermissionDenied(
          say("permission denied; check owner and mode of the folder, or choose another folder"));
    case ENOSPC:
      return ResourceExhausted(
          say("no space left on the disk; free some, or choose a folder on another disk"));
    case EDQUOT:
      return ResourceExhausted(say("disk quota used up; free some, or choose a folder on another disk"));
    case EMFILE:
    case ENFILE:
      return ResourceExhausted(say("too many open files; raise the limit (ulimit -n)"));
    case EROFS:
      return FailedPrecondition(
          say("the file system is read-only; mount it for writing, or choose a folder on another disk"));
    case ENOTEMPTY:
      return FailedPrecondition(say("the folder is not empty; move away what is there"));
    case ENOTDIR:
      return FailedPrecondition(say("a part of the path is a file, not a folder; check the path"));
    case EISDIR:
      return FailedPrecondition(say("this is a folder, a file was expected; check the path"));
    case ENAMETOOLONG:
      return InvalidArgument(say("the name is too long; choose a shorter one"));
    case EIO:
      return DataLoss(
          say("the device reported an I/O error; look at the system log (dmesg) and replace the disk"));
    default: {
      char text[128] = "";
      // The GNU version may return a pointer to a constant instead of filling `text`.
      return Internal(
          say(std::string(strerror_r(error, text, sizeof(text))) + " (errno " + std::to_string(error) + ")"));
    }
  }
}

bool FileSystem::Exists(const std::string& path) {
  const auto info = Stat(path);
  return info.ok() && info->exists;
}

StatusOr<int64_t> FileSystem::Size(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const FileInfo info, Stat(path));
  if (!info.exists) return FileError(ENOENT, "read the size", path);
  return info.bytes;
}

StatusOr<std::string> FileSystem::ReadFile(const std::string& path, int64_t max_bytes) {
  TP_ASSIGN_OR_RETURN(auto file, OpenForRead(path));
  TP_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  if (bytes > max_bytes) {
    return ResourceExhausted(path + ": the file has " + std::to_string(bytes) + " bytes, at most " +
                             std::to_string(max_bytes) + " are expected here; is it the right file?");
  }
  return file->ReadAt(0, bytes);
}

Status FileSystem::WriteFile(const std::string& path, std::string_view bytes, FileAccess access) {
  const std::string temporary = path + ".tmp";
  TP_RETURN_IF_ERROR(RemoveTree(temporary));
  Status status = [&]() -> Status {
    TP_ASSIGN_OR_RETURN(auto file, CreateNew(temporary, access));
    TP_RETURN_IF_ERROR(file->Append(bytes));
    return file->Sync();
  }();
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    // The first error is the one to tell; a left-over .tmp is harmless and replaced by the next write.
    (void)RemoveTree(temporary);
    return status;
  }
  return SyncDir(ParentPath(path));
}

Status FileSystem::MakeDirectories(const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const FileInfo info, Stat(dir));
  if (info.exists) return info.is_directory ? OkStatus() : FileError(ENOTDIR, "create folder", dir);
  const std::string parent = ParentPath(dir);
  if (parent != dir) TP_RETURN_IF_ERROR(MakeDirectories(parent));
  Status made = MakeDirectory(dir);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists)
    return made;  // another process was quicker: fine
  return SyncDir(parent);
}

Status FileSystem::RemoveTree(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const FileInfo info, Stat(path));
  if (!info.is_directory || info.is_link) {
    // Stat says "nothing" of a dangling link as well, so try in both cases.
    Status removed = RemoveFile(path);
    return removed.code() == StatusCode::kNotFound ? OkStatus() : removed;
  }
  TP_ASSIGN_OR_RETURN(const auto names, List(path));
  for (const std::string& name : names) TP_RETURN_IF_ERROR(RemoveTree(JoinPath(path, name)));
  return RemoveDirectory(path);
}

StatusOr<std::unique_ptr<FileLock>> FileSystem::TakeLock(const std::string& path, const std::string& who) {
  const std::string taken = path + ".taken";
  TP_ASSIGN_OR_RETURN(auto lock, Lock(taken, who));
  TP_RETURN_IF_ERROR(Rename(taken, path));
  return lock;
}

StatusOr<std::vector<std::string>> FileSystem::ListTree(const std::string& dir) {
  std::vector<std::string> files;
  std::vector<std::string> pending = {""};
  while (!pending.empty()) {
    const std::string at = std::move(pending.back());
    pending.pop_back();
    TP_ASSIGN_OR_RETURN(const auto names, List(at.empty() ? dir : JoinPath(dir, at)));
    for (const std::string& name : names) {
      std::string relative = JoinPath(at, name);
      TP_ASSIGN_OR_RETURN(const FileInfo info, Stat(JoinPath(dir, relative)));
      (info.is_directory && !info.is_link ? pending : files).push_back(std::move(relative));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tidepool
