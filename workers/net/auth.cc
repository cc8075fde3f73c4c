#include "workers/net/auth.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"

namespace tidepool::workers {
namespace {

constexpr std::string_view kUnfinished = ".tidepool-unfinished-";

}  // namespace

JobTokens::JobTokens(std::string secret) : secret_(std::move(secret)) {
  for (const CallerRole role : AllOf<CallerRole>())
    tokens_[static_cast<size_t>(role)] = HmacSha256Hex(secret_, std::string("tidepool role ") + Name(role));
}

StatusOr<JobTokens> JobTokens::Random() {
  std::array<uint8_t, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Unavailable("the kernel gave no random bytes for a job secret");
  }
  return JobTokens(Hex(bytes));
}

StatusOr<JobTokens> JobTokens::OpenOrCreate(const std::string& dir) {
  RemoveUnfinishedSecrets(dir);
  const std::string path = dir + "/secret";
  std::error_code error;  // what cannot be looked at is named by who writes it
  if (std::filesystem::exists(path, error)) {
    TP_ASSIGN_OR_RETURN(std::string secret, ReadTokenFile(path));
    JobTokens known(std::move(secret));
    for (const CallerRole role : AllOf<CallerRole>()) {  // runs of older builds lack some
      const std::string file = dir + "/" + Name(role) + ".token";
      if (!std::filesystem::exists(file, error))
        TP_RETURN_IF_ERROR(WriteSecretFile(file, known.Token(role) + "\n"));
    }
    return known;
  }
  std::filesystem::create_directories(dir, error);
  if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  TP_ASSIGN_OR_RETURN(JobTokens tokens, Random());
  for (const CallerRole role : AllOf<CallerRole>())
    TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + Name(role) + ".token", tokens.Token(role) + "\n"));
  TP_RETURN_IF_ERROR(WriteSecretFile(path, tokens.secret_ + "\n"));
  return tokens;
}

const std::string& JobTokens::Token(CallerRole role) const { return tokens_[static_cast<size_t>(role)]; }

std::optional<CallerRole> JobTokens::RoleOf(std::string_view token) const {
  std::optional<CallerRole> found;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (ConstantTimeEqual(token, tokens_[i])) found = static_cast<CallerRole>(i);
  }
  return found;
}

Status WriteSecretFile(const std::string& path, const std::string& text) {
  // A new file each time (O_EXCL): bytes never go to what somebody has put there, nor through a link, and the
  // mode is this one from the start.
  std::string temporary = path + std::string(kUnfinished) + "XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return Unavailable(path + ": cannot be written (" + std::strerror(errno) + ")");
  (void)flock(fd, LOCK_EX | LOCK_NB);  // RemoveUnfinishedSecrets removes nothing that it cannot lock
  const bool wrote =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const bool named = wrote && rename(temporary.c_str(), path.c_str()) == 0;
  const std::string error = std::strerror(errno);
  if (!named) unlink(temporary.c_str());
  close(fd);
  if (named) return RealFileSystem().SyncDir(ParentPath(path));
  return Unavailable(path + ": cannot be written (" + error + ")");
}

namespace {

// "device.key.tidepool-unfinished-Ab12Cd": a name that people give to nothing.
bool IsUnfinished(const std::string& name) {
  const size_t at = name.rfind(kUnfinished);
  return at != std::string::npos && name.size() - at == kUnfinished.size() + 6;
}

}  // namespace

void RemoveUnfinishedSecrets(const std::string& dir) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  std::error_code error;  // what cannot be listed stays
  for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (IsUnfinished(it->path().filename().string())) found.push_back(it->path().string());
  }
  for (const std::string& path : found) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(fd);
  }
}

Status CheckPrivate(const std::string& path) {
  struct stat st {};
  if (stat(path.c_str(), &st) != 0)
    return NotFound(path + ": no such file; the run directory's security/ folder has tokens and keys");
  if ((st.st_mode & 077) != 0) return PermissionDenied(path + ": others can read this secret; chmod 600 it");
  return OkStatus();
}

StatusOr<std::string> ReadTokenFile(const std::string& path) {
  TP_RETURN_IF_ERROR(CheckPrivate(path));
  std::ifstream in(path);
  std::string token;
  in >> token;
  if (token.size() != 64) return InvalidArgument(path + ": holds no token of 64 hex digits");
  return token;
}

}  // namespace tidepool::workers
