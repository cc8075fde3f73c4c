#pragma once
// Where a reward server listens, as `reward.functions[].endpoint` says it:
//
//   unix:/path, host:port     gRPC, proto/reward.proto
//   http://host[:port][/path] JSON by POST; port 80 and path "/" where they are left out
//
// Neither is encrypted or authenticated.

#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool::tasks {

struct RewardEndpoint {
  bool http = false;  // else gRPC, which reads the endpoint by itself: the rest is empty
  std::string host;   // an IPv6 address without its brackets
  std::string port;
  std::string path;  // with its query
};

// kInvalidArgument: "found 'X'; expected ...".
StatusOr<RewardEndpoint> ParseRewardEndpoint(std::string_view text);

}  // namespace tidepool::tasks
