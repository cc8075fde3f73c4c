#pragma once
// The Newcomers service (proto/control.proto): the controller gives a certificate for a join token. The
// server shows the controller's certificate and asks for none; it has a door of its own (listener.h), so that
// who has no certificate never reaches the services of the run.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "workers/net/newcomers.h"

namespace tidepool::workers {

struct JoinServerOptions {
  std::string bind = "127.0.0.1";
  std::string advertise;  // host that newcomers dial; empty: what is bound
  Identity identity;      // the controller's, of files
};

class JoinServer {
 public:
  // Admits whom a join token names. On a thread of its own, which the disk may hold up; what it touches it
  // owns.
  using Admits = std::function<StatusOr<Admitted>(const std::string& id, const std::string& secret,
                                                  const std::string& signing_request)>;
  // Listens on any free port. kUnavailable: it cannot.
  static StatusOr<std::unique_ptr<JoinServer>> Start(const JoinServerOptions& options, Admits admits);
  ~JoinServer();
  [[nodiscard]] std::string address() const;
  // The last word of a controller that ends.
  void Stop();

 private:
  JoinServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The other end: makes a key, asks, and writes the role's .token, .crt and .key, and authority.crt into
// `dir`, which is for its owner alone. Waits until the run's processes take the certificate. kUnavailable:
// nobody with the job's certificate answers; the rest as Admit.
Status Join(const JoinToken& token, const std::string& dir);

}  // namespace tidepool::workers
