#pragma once
// Between our Status and gRPC's (the codes are the same numbers), and the token on a call.

#include <grpcpp/grpcpp.h>

#include <string>

#include "core/base/status.h"
#include "workers/net/auth.h"

namespace tidepool::workers {

// Called before the first server or channel of a process.
void QuietGrpcLog();

grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);

// kUnauthenticated: no token, or none of this job's. Sets `role` otherwise.
Status CheckToken(const grpc::ServerContextBase& context, const JobTokens& tokens, CallerRole* role);
void AddToken(grpc::ClientContext* context, const std::string& token);

}  // namespace tidepool::workers
