#include "workers/net/http_get.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "core/base/loopback.h"

namespace tidepool::workers {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

class Call {
 public:
  explicit Call(const HttpGetOptions& options) : options_(options) {}

  StatusOr<HttpGot> Make() {
    const std::string host(BareHost(HostOf(options_.address)));
    const std::string port = options_.address.substr(options_.address.rfind(':') + 1);
    if (!options_.credentials.identity && !IsLoopback(host))
      return FailedPrecondition(options_.address +
                                ": is on another host, and no certificates lie beside the token, which would "
                                "be legible on its way; copy authority.crt, operator.crt and operator.key of "
                                "RUN/security, too");
    net::ip::tcp::resolver resolver(io_);
    error_code error;
    const auto found = resolver.resolve(host, port, error);
    if (error)
      return InvalidArgument(options_.address + ": no host and port (" + error.message() +
                             "); write HOST:PORT, as RUN/control.json has it (`pages`)");
    stream_.expires_after(options_.timeout);
    TP_RETURN_IF_ERROR(Step("no connection", [&](auto done) {
      stream_.async_connect(found, [done](error_code e, const auto&) { done(e); });
    }));
    if (!options_.credentials.identity) return Ask(stream_);
    const Identity identity = Newest(*options_.credentials.identity);
    net::ssl::context tls(net::ssl::context::tls_client);
    tls.add_certificate_authority(net::buffer(identity.authority));
    tls.use_certificate_chain(net::buffer(identity.certificate));
    tls.use_private_key(net::buffer(identity.key), net::ssl::context::pem);
    tls.set_verify_mode(net::ssl::verify_peer);
    tls.set_verify_callback(net::ssl::host_name_verification(kPagesName));
    net::ssl::stream<beast::tcp_stream&> encrypted(stream_, tls);
    TP_RETURN_IF_ERROR(Step("no process of this job", [&](auto done) {
      encrypted.async_handshake(net::ssl::stream_base::client, [done](error_code e) { done(e); });
    }));
    return Ask(encrypted);
  }

 private:
  template <typename Start>
  Status Step(const char* what, Start start) {
    std::optional<error_code> outcome;
    start([&outcome](error_code error) { outcome = error; });
    io_.restart();
    io_.run();  // over at the stream's time-out
    if (!outcome || *outcome)
      return Unavailable(options_.address + ": " + what + " (" +
                         (outcome ? outcome->message() : "it was called off") + ")");
    return OkStatus();
  }

  template <typename Stream>
  StatusOr<HttpGot> Ask(Stream& stream) {
    http::request<http::empty_body> request(http::verb::get, options_.target, 11);
    request.set(http::field::host, options_.address);
    request.set(http::field::authorization, "Bearer " + options_.credentials.token);
    request.keep_alive(false);
    TP_RETURN_IF_ERROR(Step("the request was not taken", [&](auto done) {
      http::async_write(stream, request, [done](error_code e, size_t) { done(e); });
    }));
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> answer;
    answer.body_limit(options_.answer_bytes_max);
    const char* none = options_.credentials.identity
                           ? "no answer"
                           : "no answer; of a run that is encrypted, authority.crt, operator.crt and "
                             "operator.key have to lie beside the token";
    TP_RETURN_IF_ERROR(Step(none, [&](auto done) {
      http::async_read(stream, buffer, answer, [done](error_code e, size_t) { done(e); });
    }));
    return HttpGot{static_cast<int>(answer.get().result_int()), std::move(answer.get().body())};
  }

  const HttpGetOptions& options_;
  net::io_context io_{1};
  beast::tcp_stream stream_{io_};
};

}  // namespace

StatusOr<HttpGot> HttpGet(const HttpGetOptions& options) {
  try {
    return Call(options).Make();
  } catch (const boost::system::system_error& e) {  // of certificates that are none
    return InvalidArgument(options.address + ": " + e.what());
  }
}

}  // namespace tidepool::workers
