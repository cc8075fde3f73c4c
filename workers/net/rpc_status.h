#pragma once
// Between our Status and gRPC's (the codes are the same numbers), and what a call carries beside its
// messages.

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

// What a worker says of itself beside its first message, for a controller of another build, which cannot read
// that. Empty: it says nothing.
void AddBuild(grpc::ClientContext* context, const std::string& build);
std::string BuildOf(const grpc::ServerContextBase& context);

}  // namespace tidepool::workers
