#include "core/storage/share_files.h"

#include <string_view>

namespace tidepool::storage {
namespace {

constexpr int64_t kSharedPieceBytes = int64_t{4} << 20;  // compared or copied at a time

StatusOr<bool> SameBytes(FileSystem& fs, const std::string& a, const std::string& b, int64_t bytes) {
  TP_ASSIGN_OR_RETURN(const auto first, fs.OpenForRead(a));
  TP_ASSIGN_OR_RETURN(const auto second, fs.OpenForRead(b));
  for (int64_t at = 0; at < bytes; at += kSharedPieceBytes) {
    TP_ASSIGN_OR_RETURN(const std::string x, first->ReadAt(at, kSharedPieceBytes));
    TP_ASSIGN_OR_RETURN(const std::string y, second->ReadAt(at, kSharedPieceBytes));
    if (x != y) return false;
  }
  return true;
}

Status Share(FileSystem& fs, const std::string& from, const std::string& to, int64_t bytes) {
  TP_ASSIGN_OR_RETURN(const bool same, SameBytes(fs, from, to, bytes));
  if (!same) return FailedPrecondition(to + ": differs from " + from);
  const std::string name = to + ".shared";
  Status status = fs.Link(from, name);
  if (status.ok()) status = fs.Rename(name, to);
  // Also where `to` was such a name before: then rename does nothing.
  if (Status removed = fs.RemoveTree(name); status.ok()) return removed;
  return status;
}

bool BelongsToModel(std::string_view name) {
  for (const std::string_view ending : {".safetensors", ".json", ".jinja", ".txt", "tokenizer.model"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

Status CopyFile(FileSystem& fs, const std::string& from, const std::string& to) {
  TP_ASSIGN_OR_RETURN(const auto in, fs.OpenForRead(from));
  TP_ASSIGN_OR_RETURN(const auto out, fs.CreateNew(to));
  while (true) {
    TP_ASSIGN_OR_RETURN(const std::string piece, in->ReadAt(out->size(), kSharedPieceBytes));
    if (piece.empty()) return OkStatus();
    TP_RETURN_IF_ERROR(out->Append(piece));
  }
}

Status LinkFiles(FileSystem& fs, const std::string& from, const std::string& to) {
  if (!fs.Exists(JoinPath(from, "model.safetensors")) &&
      !fs.Exists(JoinPath(from, "model.safetensors.index.json")))
    return NotFound(from + ": no weights");
  TP_RETURN_IF_ERROR(fs.MakeDirectory(to));
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(from));
  for (const std::string& name : names) {
    const std::string source = JoinPath(from, name), target = JoinPath(to, name);
    TP_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(source));
    if (!info.exists || info.is_directory || !BelongsToModel(name)) continue;
    TP_RETURN_IF_ERROR(name.ends_with(".safetensors") ? fs.Link(source, target)
                                                      : CopyFile(fs, source, target));
  }
  return OkStatus();
}

}  // namespace

int64_t ShareEqualFiles(FileSystem& fs, const std::string& like, const std::string& dir,
                        const std::vector<std::string>& paths) {
  int64_t shared = 0;
  for (const std::string& path : paths) {
    const auto before = fs.Stat(JoinPath(like, path)), now = fs.Stat(JoinPath(dir, path));
    if (!before.ok() || !now.ok() || !before->exists || before->is_directory || before->is_link ||
        now->is_link || before->bytes != now->bytes || now->bytes == 0)
      continue;
    if (Share(fs, JoinPath(like, path), JoinPath(dir, path), now->bytes).ok()) shared += now->bytes;
  }
  return shared;
}

Status CopyModel(FileSystem& fs, const std::string& from, const std::string& to) {
  TP_RETURN_IF_ERROR(fs.MakeDirectory(to));
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(from));
  for (const std::string& name : names) {
    TP_RETURN_IF_ERROR(CopyFile(fs, JoinPath(from, name), JoinPath(to, name)));
  }
  return OkStatus();
}

Status LinkModel(FileSystem& fs, const std::string& from, const std::string& to) {
  const Status linked = LinkFiles(fs, from, to);
  if (linked.ok()) return linked;
  TP_RETURN_IF_ERROR(fs.RemoveTree(to));
  return linked;
}

}  // namespace tidepool::storage
