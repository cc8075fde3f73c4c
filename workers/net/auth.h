#pragma once
// Who may call what. A job has one 256-bit secret; the token of a role is HMAC-SHA256(secret, role),
// so knowing one role's token gives no other. Tokens live in 0600 files of the run directory and
// travel as call metadata `authorization: Bearer <hex>`, on every call. Compared in constant time.
// Immutable after creation; thread-safe.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::workers {

// An operator reads what a run's processes say of themselves (watch_pages.h), and can do nothing else.
enum class CallerRole { kDevice, kReward, kEnvironment, kOperator };
constexpr auto WordsOf(CallerRole) {
  return std::to_array<const char*>({"device", "reward", "environment", "operator"});
}

class JobTokens {
 public:
  // From 32 bytes of the kernel's random source.
  static StatusOr<JobTokens> Random();
  // Reads DIR/secret, or makes it with the tokens of all roles (files DIR/<role>.token, mode 0600). Removes
  // unfinished secrets.
  static StatusOr<JobTokens> OpenOrCreate(const std::string& dir);

  [[nodiscard]] const std::string& Token(CallerRole role) const;
  // The role a token belongs to; nullopt: none of this job's.
  [[nodiscard]] std::optional<CallerRole> RoleOf(std::string_view token) const;

 private:
  explicit JobTokens(std::string secret);
  std::string secret_;
  std::array<std::string, kWords<CallerRole>.size()> tokens_;
};

// Reads a token file; refuses one that others can read.
StatusOr<std::string> ReadTokenFile(const std::string& path);
// kPermissionDenied: others can read the file.
Status CheckPrivate(const std::string& path);
// For its owner alone, on the disk when this returns. In the place of what has that name (a link is not
// followed), at once: who reads sees the old text or the new one.
Status WriteSecretFile(const std::string& path, const std::string& text);
// What WriteSecretFile left below `dir` where its process died; not what one that lives is writing. A file
// system without locks keeps it.
void RemoveUnfinishedSecrets(const std::string& dir);

}  // namespace tidepool::workers
