#pragma once
// One GET of a page that a process of a run shows of itself (watch_pages.h).

#include <chrono>
#include <string>

#include "core/base/status.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {

struct HttpGetOptions {
  std::string address;      // "10.0.0.7:9100", "[fd00::7]:9100", "localhost:9100"
  std::string target;       // "/status"
  Credentials credentials;  // with an identity the call is encrypted, and the server has to be the job's
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  size_t answer_bytes_max = 16 << 20;
};
struct HttpGot {
  int status = 0;
  std::string body;
};
// kFailedPrecondition: another host, and no identity: the token is shown to nobody. kUnavailable: nobody
// answers there in time, or it is no process of this job. kInvalidArgument: the address
// is none. Blocks.
StatusOr<HttpGot> HttpGet(const HttpGetOptions& options);

}  // namespace tidepool::workers
