#include "workers/net/why_not_believed.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <utility>

#include "core/base/loopback.h"
#include "core/base/utc_time.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

using x509::Freed;

struct Socket {
  explicit Socket(int owned = -1) : fd(owned) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int fd;
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
};

// fd -1: nobody answers in time.
Socket ConnectTo(const std::string& address, std::chrono::milliseconds patience) {
  const std::string port = address.substr(address.rfind(':') + 1);
  const addrinfo hints{.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (::getaddrinfo(std::string(BareHost(HostOf(address))).c_str(), port.c_str(), &hints, &found) != 0)
    return Socket();
  const std::unique_ptr<addrinfo, Freed<::freeaddrinfo>> owned(found);
  Socket made(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  ::setsockopt(made.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(made.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect, too
  if (::connect(made.fd, found->ai_addr, found->ai_addrlen) == 0) return made;
  ::close(std::exchange(made.fd, -1));
  return made;
}

// What is wrong with a certificate of another process.
NotBelieved FaultOf(X509* theirs, const Identity& identity, int64_t now) {
  const auto authorities = x509::ParseCertificates(identity.authority);
  const bool known = x509::IssuerOf(theirs, authorities) != nullptr;
  const std::string ours = authorities.empty() ? "" : x509::OrganisationOf(authorities.front().get());
  const std::string clock = ", and this host's clock says " + UtcTimeText(now * 1000);
  if (!known && x509::OrganisationOf(theirs) != ours)
    return {"it shows a certificate of run '" + x509::OrganisationOf(theirs) +
                "', and those beside the token are of run '" + ours + "'",
            true};
  if (now > x509::EndOf(theirs))
    return {"its certificate has expired at " + UtcTimeText(x509::EndOf(theirs) * 1000) + clock};
  if (now < x509::BeginOf(theirs))
    return {"its certificate holds from " + UtcTimeText(x509::BeginOf(theirs) * 1000) + " on" + clock};
  if (!known)
    return {"its certificate is newer than the files beside the token, or older; " +
            std::string(IsNewcomers(identity)
                            ? "join again with another join token (`tidepool join-token RUN`)"
                            : "copy RUN/security again")};
  return {};
}

}  // namespace

NotBelieved WhyNotBelieved(const std::string& address, const Identity& identity,
                           std::chrono::milliseconds patience) {
  const Status mine_holds = identity.folder.empty() ? OkStatus() : CheckHolds(identity);
  const Socket socket = ConnectTo(address, patience);
  if (socket.fd < 0) return {mine_holds.message()};
  const std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  const x509::Certificate mine = x509::ParseCertificate(identity.certificate);
  const x509::Key key = x509::ParseKey(identity.key);
  if (context == nullptr || !mine || !key) return {};
  SSL_CTX_use_certificate(context.get(), mine.get());
  SSL_CTX_use_PrivateKey(context.get(), key.get());
  const std::unique_ptr<SSL, Freed<SSL_free>> tls(SSL_new(context.get()));
  SSL_set_fd(tls.get(), socket.fd);
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};  // without it gRPC hangs up
  SSL_set_alpn_protos(tls.get(), kHttp2, sizeof kHttp2);
  const bool met = SSL_connect(tls.get()) == 1;
  const x509::Certificate theirs(SSL_get1_peer_certificate(tls.get()));
  if (theirs) {
    if (NotBelieved fault = FaultOf(theirs.get(), identity, time(nullptr)); !fault.why.empty()) return fault;
  }
  if (!mine_holds.ok()) return {mine_holds.message()};
  char byte = 0;
  if (!theirs || (met && SSL_read(tls.get(), &byte, 1) > 0)) return {};  // TLS 1.3 refuses us only now
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  const std::string said = reason == nullptr ? "" : reason;
  ERR_clear_error();  // it was for this message
  if (said.empty()) return {};
  return {"it does not take the certificate beside the token: " + said};
}

}  // namespace tidepool::workers
