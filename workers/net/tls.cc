#include "workers/net/tls.h"

#include <algorithm>

namespace tidepool::workers {

std::shared_ptr<grpc::ServerCredentials> ServerSide(const std::optional<Identity>& identity) {
  if (!identity) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = identity->authority;
  options.pem_key_cert_pairs.push_back({identity->key, identity->certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ClientSide(const std::optional<Identity>& identity,
                                                     const std::string& role, grpc::ChannelArguments* args) {
  if (!identity) return grpc::InsecureChannelCredentials();
  args->SetSslTargetNameOverride(CertifiedName(role));
  return grpc::SslCredentials({.pem_root_certs = identity->authority,
                               .pem_private_key = identity->key,
                               .pem_cert_chain = identity->certificate});
}

Status CheckCertificate(const grpc::ServerContextBase& context, const std::string& role) {
  const auto peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return OkStatus();  // not over TLS, which requires one
  const auto names = peer->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME);
  if (std::ranges::any_of(names, [&](const grpc::string_ref& name) { return name == CertifiedName(role); }))
    return OkStatus();
  return PermissionDenied("the token is that of " + role + ", and the certificate is not");
}

}  // namespace tidepool::workers
