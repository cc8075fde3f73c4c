#include "workers/net/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>

namespace tidepool::workers {

namespace {

std::shared_ptr<grpc::ServerCredentials> OfFiles(const Identity& identity,
                                                 grpc_ssl_client_certificate_request_type of_callers) {
  namespace tls = grpc::experimental;
  const std::string of_role = identity.folder + "/" + identity.role;
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      of_role + ".key", of_role + ".crt", identity.folder + "/authority.crt",
      static_cast<unsigned>(LooksEvery(identity))));
  if (of_callers != GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE) options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(of_callers);
  return tls::TlsServerCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerSide(const std::optional<Identity>& identity) {
  if (!identity) return grpc::InsecureServerCredentials();
  constexpr auto kRequire = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  if (!identity->folder.empty()) return OfFiles(*identity, kRequire);
  grpc::SslServerCredentialsOptions options(kRequire);
  options.pem_root_certs = identity->authority;
  options.pem_key_cert_pairs.push_back({identity->key, identity->certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerSideForAnyone(const Identity& identity) {
  return OfFiles(identity, GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
}

std::shared_ptr<grpc::ChannelCredentials> ClientSide(const std::optional<Identity>& identity,
                                                     const std::string& role, grpc::ChannelArguments* args) {
  if (!identity) return grpc::InsecureChannelCredentials();
  args->SetSslTargetNameOverride(CertifiedName(role));
  const Identity now = Newest(*identity);
  return grpc::SslCredentials(
      {.pem_root_certs = now.authority, .pem_private_key = now.key, .pem_cert_chain = now.certificate});
}

Status CheckCertificate(const grpc::ServerContextBase& context, const std::string& role) {
  const auto peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return OkStatus();  // not over TLS, which requires one
  const auto names = peer->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME);
  if (std::ranges::any_of(names, [&](const grpc::string_ref& name) { return name == CertifiedName(role); }))
    return OkStatus();
  return PermissionDenied("the token is that of " + role + ", and the certificate is not");
}

std::optional<int64_t> CertifiedPlaceOf(const grpc::ServerContextBase& context) {
  const auto peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return std::nullopt;
  for (const grpc::string_ref& name : peer->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    if (const auto place = PlaceOf({name.data(), name.size()})) return place;
  }
  return std::nullopt;
}

}  // namespace tidepool::workers
