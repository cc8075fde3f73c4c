#pragma once
// Between our Status and gRPC's (the codes are the same numbers), and the token on a call.

#include <grpcpp/grpcpp.h>

#include <string>

#include "core/base/status.h"
#include "workers/net/auth.h"

namespace tidepool::workers {

// What a process that speaks by gRPC sets; called before its first server or channel.
void SetUpGrpc();

grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);

// kUnauthenticated: no token, or none of this job's. Sets `role` otherwise.
Status CheckToken(const grpc::ServerContextBase& context, const JobTokens& tokens, CallerRole* role);
void AddToken(grpc::ClientContext* context, const std::string& token);

}  // namespace tidepool::workers
