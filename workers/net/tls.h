#pragma once
// gRPC's credentials of a job's certificates (certificates.h). Both sides show one, and each checks the
// other's role.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {

// Without an identity: no encryption. With one of a folder each new connection is made by the files as they
// are then: the server looks at them again and again, a client whenever it asks for credentials, which is for
// each dial.
std::shared_ptr<grpc::ServerCredentials> ServerSide(const std::optional<Identity>& identity);
// The same, for callers that have no certificate yet. requires identity.folder
std::shared_ptr<grpc::ServerCredentials> ServerSideForAnyone(const Identity& identity);
// role: of the server that is dialled; any other is refused. Sets what belongs to it in `args`.
std::shared_ptr<grpc::ChannelCredentials> ClientSide(const std::optional<Identity>& identity,
                                                     const std::string& role, grpc::ChannelArguments* args);
// kPermissionDenied: the call came over TLS with the certificate of another role.
Status CheckCertificate(const grpc::ServerContextBase& context, const std::string& role);
// The place that the certificate of the call is for; nullopt: it is for all of its role.
std::optional<int64_t> CertifiedPlaceOf(const grpc::ServerContextBase& context);

}  // namespace tidepool::workers
