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
#include <map>
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

// Whether a role's certificate has that name.
bool ServesPages(const std::string& role);

// The DNS name in the certificate of a role.
std::string CertifiedName(const std::string& role);

// Those of all roles, made anew, for a year: name of the file, PEM.
StatusOr<std::map<std::string, std::string>> MakeCertificates(const std::string& organisation);
// What a run is to use.
struct JobCertificates {
  Identity controller;
  std::map<std::string, std::string> files;  // of all roles, to be kept; none: they lie there already
};
// Those in `dir` if they belong together and hold for another month, else new ones.
StatusOr<JobCertificates> FindOrMakeCertificates(const std::string& dir, const std::string& run_id);
// Those that somebody else has made and put into the folder `given`, whoever may read it. kInvalidArgument:
// which one cannot be used.
StatusOr<JobCertificates> ReadGivenCertificates(const std::string& given);
// `dir` has them from now on.
Status KeepCertificates(const JobCertificates& certificates, const std::string& dir);
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
