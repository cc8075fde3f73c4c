#pragma once
// Workers of hosts that do not see the run directory. An operator makes a join token, which is good once, for
// one place, for a time, and with the controller that lives now; whoever has the file gets a certificate of
// that role and place (join_service.h), and the token of the role. The secret travels in a file and over TLS,
// to a controller that has shown the job's certificate, and in no other way.
//
// RUN/security/newcomers/ID.json says what a join token is good for, and has the digest of its secret. The
// controller takes it by renaming it to ID.used, so one of two who come at once is refused.
//
// Whoever has come so has its certificate made anew before it ends, by its word over its connection
// (NewcomerRenewal): its place is taken from the certificate that it has.
//
// Thread-safe, but NewcomerRenewal.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// The file that goes to the new host has one for each place, JSON, for its owner alone.
struct JoinToken {
  std::string join;        // address of the service
  std::string controller;  // address that the worker dials afterwards
  std::string run_id;
  std::string authority;  // PEM: who made the certificate that the service shows
  std::string id, secret;
  JoinScope scope;
  std::string name = {};           // of the worker there: "device-1"
  std::string shared_memory = {};  // folder of the run in /dev/shm
  bool vector = false;             // the worker serves a policy's environments
  bool store = false;              // the worker needs the keys of the run's object store
  bool models = false;             // the worker grades by models
};
// Adds id and secret, and what the controller has to know to `security`.
StatusOr<JoinToken> MakeJoinToken(const std::string& security, JoinToken begun);
// kAlreadyExists: the file is there.
Status WriteJoinTokens(const std::string& file, const std::vector<JoinToken>& tokens);
// One or more. kInvalidArgument: it is none; kPermissionDenied: others can read it; kFailedPrecondition: it
// has expired.
StatusOr<std::vector<JoinToken>> ReadJoinTokens(const std::string& file);

// The names in the certificate of a newcomer.
std::vector<std::string> NewcomerNames(CallerRole role, int64_t place);

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

// A newcomer's files while the run goes on: authority.crt follows the run's, and key and certificate are
// exchanged when a third of its life is left. One thread uses it.
class NewcomerRenewal {
 public:
  // Asks the controller for a certificate; an empty request: whom to believe alone.
  using Asks = std::function<StatusOr<CertificateRenewal::Certified>(const std::string& signing_request)>;
  // Null: it is no newcomer's of files.
  static std::unique_ptr<NewcomerRenewal> Of(const Identity& identity, Asks asks);
  // What is to be done by now. Returns what was done, for the log; empty: nothing. Where it fails it is tried
  // again at the next call, and the error says until when that is good for something.
  StatusOr<std::string> Advance(std::chrono::system_clock::time_point now);
  // Between two calls.
  [[nodiscard]] std::chrono::seconds Pause() const { return std::chrono::seconds(LooksEvery(identity_)); }

 private:
  NewcomerRenewal(Identity identity, Asks asks) : identity_(std::move(identity)), asks_(std::move(asks)) {}
  Status Ask(const Identity& present, bool due, std::chrono::system_clock::time_point now);
  struct Next {
    Identity identity;
    std::chrono::system_clock::time_point shown;  // all believe it then
  };
  const Identity identity_;
  const Asks asks_;
  std::optional<Next> next_;
};

}  // namespace tidepool::workers
