#include "workers/net/auth.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"

namespace tidepool::workers {
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
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return Unavailable(path + ": cannot be written (" + std::strerror(errno) + ")");
  const bool wrote =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  std::string error = std::strerror(errno);
  close(fd);
  if (wrote && rename(temporary.c_str(), path.c_str()) == 0)
    return RealFileSystem().SyncDir(ParentPath(path));
  if (wrote) error = std::strerror(errno);
  unlink(temporary.c_str());
  return Unavailable(path + ": cannot be written (" + error + ")");
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
