#include "core/storage/disk_use.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

namespace tidepool::storage {
namespace {

namespace fs = std::filesystem;

// Of `path` itself, then of all below it. Links are not followed.
template <typename Function>
void ForEachFile(const std::string& path, Function function) {
  const auto look = [&](const fs::path& file) {
    struct stat info {};
    if (::lstat(file.c_str(), &info) == 0) function(info);  // else it went while we looked
  };
  look(path);
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    look(it->path());
}

int64_t Blocks(const struct stat& info) { return static_cast<int64_t>(info.st_blocks) * 512; }

}  // namespace

int64_t DiskBytes(const std::string& path) {
  int64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> seen;
  ForEachFile(path, [&](const struct stat& info) {
    const bool shared = S_ISREG(info.st_mode) && info.st_nlink > 1;
    if (!shared || seen.emplace(info.st_dev, info.st_ino).second) bytes += Blocks(info);
  });
  return bytes;
}

std::vector<int64_t> FreedBytes(const std::vector<std::string>& paths) {
  std::map<std::pair<dev_t, ino_t>, nlink_t> names;
  std::vector<int64_t> freed;
  for (const std::string& path : paths) {
    int64_t bytes = 0;
    ForEachFile(path, [&](const struct stat& info) {
      if (S_ISREG(info.st_mode) && ++names[{info.st_dev, info.st_ino}] < info.st_nlink) return;
      bytes += Blocks(info);
    });
    freed.push_back(bytes);
  }
  return freed;
}

}  // namespace tidepool::storage
