#include "workers/side/http_call.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidepool::workers {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// What a server says that speaks no HTTP/1; empty: unknown.
std::string OtherProtocol(std::string_view bytes) {
  // A SETTINGS frame, the first thing in HTTP/2: 3 bytes of length, type 4, flags, stream 0.
  if (bytes.size() >= 9 && bytes.substr(3, 1) == "\x04" &&
      bytes.substr(5, 4) == std::string_view("\0\0\0\0", 4))
    return "a server that speaks gRPC (HTTP/2), not HTTP/1, answers there; for gRPC write the endpoint as "
           "HOST:PORT, without http://";
  // An alert record.
  if (bytes.starts_with("\x15\x03"))
    return "a server that speaks TLS (https) answers there; a reward server is asked without encryption";
  return "";
}

}  // namespace

struct HttpConnection::Impl {
  explicit Impl(HttpAddress to) : address(std::move(to)) {}

  const HttpAddress address;
  asio::io_context io{1};
  beast::tcp_stream stream{io};
  bool reusable = false, silent = true;

  // One step of a call, run to its end on the caller's thread.
  template <typename Start>
  Status Step(const char* what, std::chrono::steady_clock::time_point deadline, const std::stop_token& stop,
              Start start) {
    std::optional<beast::error_code> outcome;
    stream.expires_at(deadline);
    start([&outcome](beast::error_code error) { outcome = error; });
    io.restart();  // it was out of work after the step before
    {
      const std::stop_callback on_stop(stop, [this] { io.stop(); });
      if (!stop.stop_requested()) io.run_until(deadline + std::chrono::milliseconds(50));
    }
    if (stop.stop_requested()) return {StatusCode::kCancelled, "stopped"};
    if (!outcome || *outcome == beast::error::timeout)
      return DeadlineExceeded(std::string("no answer in time (") + what + ")");
    const beast::error_code& error = *outcome;
    if (!error) return OkStatus();
    const std::string why = std::string(error.message());
    if (error == http::error::end_of_stream || error == http::error::partial_message)
      return Unavailable("the connection was closed before the answer");
    if (error.category() == http::make_error_code(http::error::bad_version).category())
      return InvalidArgument("no HTTP answer: " + why);
    return Unavailable(why);
  }
};

HttpConnection::HttpConnection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpConnection::~HttpConnection() = default;

StatusOr<std::unique_ptr<HttpConnection>> HttpConnection::Open(const HttpAddress& address, HostLookup& lookup,
                                                               std::chrono::steady_clock::time_point deadline,
                                                               const std::stop_token& stop) {
  // Not Asio's resolver: its end waits for a lookup that is under way.
  std::vector<std::string> found = {address.host};
  boost::system::error_code is_name;
  asio::ip::make_address(address.host, is_name);
  if (is_name) {
    TP_ASSIGN_OR_RETURN(found, lookup.Addresses(deadline, stop));
  }
  std::vector<tcp::endpoint> endpoints;
  for (const std::string& one : found)
    endpoints.emplace_back(asio::ip::make_address(one), static_cast<uint16_t>(std::stoi(address.port)));
  auto impl = std::make_unique<Impl>(address);
  const Status connected = impl->Step("connect", deadline, stop, [&](auto done) {
    impl->stream.async_connect(endpoints, [done](auto error, auto&&...) { done(error); });
  });
  if (connected.code() == StatusCode::kDeadlineExceeded) return Unavailable("no connection in time");
  TP_RETURN_IF_ERROR(connected);
  boost::system::error_code ignored;  // it is slower without, no more
  impl->stream.socket().set_option(tcp::no_delay(true), ignored);
  return std::unique_ptr<HttpConnection>(new HttpConnection(std::move(impl)));
}

StatusOr<HttpAnswer> HttpConnection::Post(const HttpCall& call,
                                          std::chrono::steady_clock::time_point deadline,
                                          const std::stop_token& stop) {
  Impl& m = *impl_;
  m.reusable = false;
  m.silent = true;
  http::request<http::string_body> out(http::verb::post, call.target, 11, call.body);
  const std::string& host = m.address.host;
  const bool v6 = host.find(':') != std::string::npos;
  out.set(http::field::host, (v6 ? "[" + host + "]" : host) + ":" + m.address.port);
  out.set(http::field::content_type, "application/json");
  out.set(http::field::accept, "application/json");
  out.prepare_payload();
  const Status sent = m.Step("send", deadline, stop, [&](auto done) {
    http::async_write(m.stream, out, [done](auto error, size_t) { done(error); });
  });
  // A server that refuses a request by its head (413) answers and closes before it has read the body.
  if (!sent.ok() && sent.code() != StatusCode::kUnavailable) return sent;
  // A server that writes head and body apart, with Nagle's algorithm on, holds back the body until the head
  // is acknowledged; on a connection that is no longer new that would take the 40 ms of a delayed one. The
  // kernel forgets this after a while, so it is said for each answer.
  const int now = 1;
  (void)::setsockopt(m.stream.socket().native_handle(), IPPROTO_TCP, TCP_QUICKACK, &now, sizeof(now));
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> answer;
  answer.body_limit(call.answer_bytes_max);
  const Status read = m.Step("read the answer", deadline, stop, [&](auto done) {
    http::async_read(m.stream, buffer, answer, [done](auto error, size_t) { done(error); });
  });
  m.silent = !answer.got_some() && buffer.size() == 0;
  if (!read.ok()) {
    const std::string other = OtherProtocol({static_cast<const char*>(buffer.data().data()), buffer.size()});
    if (!other.empty()) return InvalidArgument(other);
    return sent.ok() ? read : sent;
  }
  m.reusable = sent.ok() && answer.keep_alive() && buffer.size() == 0;
  return HttpAnswer{static_cast<int>(answer.get().result_int()), std::move(answer.get().body())};
}

bool HttpConnection::reusable() const { return impl_->reusable; }
bool HttpConnection::silent() const { return impl_->silent; }

bool HttpConnection::IsQuiet() {
  char byte = 0;
  const ssize_t got =
      ::recv(impl_->stream.socket().native_handle(), &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace tidepool::workers
