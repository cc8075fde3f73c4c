#pragma once
// Workers of hosts that do not see the run directory. An operator makes a join token, which is good once, for
// one place, for a time, and with the controller that lives now; whoever has the file gets a certificate of
// that role and place (join_service.h), and the token of the role. The secret travels in a file and over TLS,
// to a controller that has shown the job's certificate, and in no other way.
//
// RUN/security/newcomers/ID.json says what a join token is good for, and has the digest of its secret. The
// controller takes it by renaming it to ID.used, so one of two who come at once is refused.
//
// Thread-safe.

#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "workers/net/auth.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {

// What it is good for.
struct JoinScope {
  CallerRole role = CallerRole::kDevice;
  int64_t place = 0;
  int64_t ctl_epoch = 0;
  int64_t expires = 0;  // seconds since 1970
};

// The file that goes to the new host, JSON, for its owner alone.
struct JoinToken {
  std::string join;        // address of the service
  std::string controller;  // address that the worker dials afterwards
  std::string run_id;
  std::string authority;  // PEM: who made the certificate that the service shows
  std::string id, secret;
  JoinScope scope;
};
// Adds id and secret, and what the controller has to know to `security`.
StatusOr<JoinToken> MakeJoinToken(const std::string& security, JoinToken begun);
// kAlreadyExists: the file is there.
Status WriteJoinToken(const std::string& file, const JoinToken& token);
// kInvalidArgument: it is none; kPermissionDenied: others can read it; kFailedPrecondition: it has expired.
StatusOr<JoinToken> ReadJoinToken(const std::string& file);

// What the controller gives for a join token.
struct Admitted {
  JoinScope scope;
  std::string token;  // of the role
  CertificateRenewal::Certified certified;
};
// kPermissionDenied, in the same words whatever is wrong with the token; else as Certify, and then the token
// is as good as before.
StatusOr<Admitted> Admit(const std::string& security, const JobTokens& tokens, int64_t ctl_epoch,
                         CertificateRenewal& certificates, const std::string& id, const std::string& secret,
                         const std::string& signing_request, std::chrono::system_clock::time_point now);

}  // namespace tidepool::workers
