#include "core/observe/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/base/real_file_system.h"

namespace tidepool::observe {
namespace {

// Length of the file up to and including its last '\n'.
StatusOr<int64_t> WholeLines(FileSystem& fs, const std::string& path) {
  TP_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  TP_ASSIGN_OR_RETURN(int64_t end, file->Size());
  while (end > 0) {
    const int64_t start = std::max<int64_t>(0, end - 4096);
    TP_ASSIGN_OR_RETURN(const std::string piece, file->ReadAt(start, end - start));
    if (const size_t at = piece.rfind('\n'); at != std::string::npos)
      return start + static_cast<int64_t>(at) + 1;
    end = start;
  }
  return 0;
}

}  // namespace

Status MakeFolderOf(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(ParentPath(path), error);
  return error ? FileError(error.value(), "create folder", ParentPath(path)) : OkStatus();
}

StatusOr<AppendFile> AppendFile::Open(const std::string& path, const AppendOptions& options) {
  RealFileSystem fs;
  TP_RETURN_IF_ERROR(MakeFolderOf(path));
  TP_ASSIGN_OR_RETURN(auto file, fs.OpenForAppend(path, options.access));
  if (options.cut_torn_line) {
    TP_ASSIGN_OR_RETURN(const int64_t whole, WholeLines(fs, path));
    TP_RETURN_IF_ERROR(file->Truncate(whole));
  }
  return AppendFile(std::move(file), path);
}

Status ReplaceFile(const std::string& path, std::string_view bytes) {
  RealFileSystem fs;
  const std::string temporary = path + ".tmp";
  TP_RETURN_IF_ERROR(fs.RemoveTree(temporary));  // left over; opening appends
  {
    TP_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Open(temporary, {.access = FileAccess::kOwnerOnly}));
    TP_RETURN_IF_ERROR(file.Append(bytes));
  }
  return fs.Rename(temporary, path);
}

namespace {

constexpr size_t kBlock = 4096, kSpare = 1024;  // for what the next text is longer

Status WriteWhole(const std::string& path, int flags, const std::string& text) {
  const int fd = ::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(errno, "open", path);
  const ssize_t n = ::pwrite(fd, text.data(), text.size(), 0);
  int error = n < 0 ? errno : static_cast<size_t>(n) < text.size() ? ENOSPC : 0;
  if (::close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? OkStatus() : FileError(error, "write", path);
}

}  // namespace

Status ShowInFile(const std::string& path, std::string text) {
  text += '\n';
  text.resize((text.size() + kSpare + kBlock - 1) / kBlock * kBlock, '\n');
  const std::string temporary = path + ".tmp";
  Status written = WriteWhole(temporary, O_CREAT | O_TRUNC, text);
  if (written.ok()) return RealFileSystem().Rename(temporary, path);
  ::unlink(temporary.c_str());  // it may not have been made
  std::error_code error;
  const auto room = std::filesystem::file_size(path, error);
  if (error || room < text.size()) return written;  // half of it would be worse
  text.resize(room, '\n');
  return WriteWhole(path, 0, text);
}

}  // namespace tidepool::observe
