#pragma once
// Who is who where the wire leaves the machine: certificates of an authority that is the job's own.
//
// Beside the token of each role in RUN/security lie its certificate and key (<role>.crt, <role>.key), and
// authority.crt. A certificate names the role, "device.tidepool", and no host: a job's processes may run
// anywhere. The authority's key is forgotten once the certificates are made, so nobody can make another one
// for the job.
//
// TLS is used where these files lie beside the token, else not at all. Thread-safe.

#include <chrono>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

inline constexpr char kControllerRole[] = "controller";

// What a process shows and whom it believes, PEM.
struct Identity {
  std::string authority, certificate, key;
};

// A second name in the certificates of all who serve pages (watch_pages.h), so that one scraper's setting
// fits all of them. An operator's has it not: it cannot pass for a process of the run.
inline constexpr char kPagesName[] = "pages.tidepool";

// The DNS name in the certificate of a role.
std::string CertifiedName(const std::string& role);

// The controller's, with those of all roles in `dir`: as they are if they belong together and hold for
// another month, else made anew, for a year.
StatusOr<Identity> OpenOrCreateCertificates(const std::string& dir, const std::string& run_id);
// Calls are not encrypted from now on.
void RemoveCertificates(const std::string& dir);

// Of the role whose token this file has; nullopt: no certificates lie beside it. kInvalidArgument: some file
// is missing, kPermissionDenied: others can read the key.
StatusOr<std::optional<Identity>> ReadIdentity(const std::string& token_file);

// What a process shows on every call.
struct Credentials {
  std::string token;
  std::optional<Identity> identity = std::nullopt;
};
// The token of a file, and the certificate beside it.
StatusOr<Credentials> ReadCredentials(const std::string& token_file);

}  // namespace tidepool::workers
