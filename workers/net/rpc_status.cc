#include "workers/net/rpc_status.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <string_view>

namespace tidepool::workers {
namespace {
constexpr std::string_view kScheme = "Bearer ";
constexpr char kBuild[] = "tidepool-build-bin";  // gRPC takes any bytes under such a name
constexpr size_t kBuildMost = 200;               // bytes that are shown of it
}  // namespace

void SetUpGrpc() {
  // gRPC stays until the process ends. Else the last connection that goes takes it down, and waits up to 10 s
  // for a thread of gRPC's own that polls.
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
  // gRPC's own lines on stderr ("UNKNOWN:No address added ...") say what a Status of ours says better.
  gpr_set_log_function([](gpr_log_func_args*) {});
#ifdef __OPTIMIZE__  // NDEBUG is never defined here: TP_CHECK and assert stay
  // Debian's Abseil looks for deadlocks at every lock of gRPC, in programs that are not debugged as well.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return {static_cast<StatusCode>(status.error_code()), status.error_message()};
}

Status CheckToken(const grpc::ServerContextBase& context, const JobTokens& tokens, CallerRole* role) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  if (it == metadata.end())
    return Unauthenticated("no token; every call carries `authorization: Bearer <job token>`");
  const std::string_view value(it->second.data(), it->second.size());
  if (value.substr(0, kScheme.size()) != kScheme)
    return Unauthenticated("the authorization is not a bearer token");
  const auto found = tokens.RoleOf(value.substr(kScheme.size()));
  if (!found) return Unauthenticated("the token is not one of this job's");
  *role = *found;
  return OkStatus();
}

void AddToken(grpc::ClientContext* context, const std::string& token) {
  context->AddMetadata("authorization", std::string(kScheme) + token);
}

void AddBuild(grpc::ClientContext* context, const std::string& build) { context->AddMetadata(kBuild, build); }

std::string BuildOf(const grpc::ServerContextBase& context) {
  const auto it = context.client_metadata().find(kBuild);
  if (it == context.client_metadata().end()) return "";
  std::string build(it->second.data(), std::min(it->second.size(), kBuildMost));
  std::ranges::replace_if(
      build, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return build;
}

}  // namespace tidepool::workers
