#include "workers/side/http_call.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <functional>
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

// The steps of one call, each run to its end on the caller's thread.
class Call {
 public:
  Call(const HttpRequest& request, std::chrono::steady_clock::time_point deadline,
       const std::stop_token& stop)
      : request_(request), deadline_(deadline), stop_(stop), on_stop_(stop, [this] { io_.stop(); }) {}

  StatusOr<HttpAnswer> Run(HostLookup& lookup) {
    // Not Asio's resolver: its end waits for a lookup that is under way.
    std::vector<std::string> addresses = {request_.host};
    boost::system::error_code is_name;
    asio::ip::make_address(request_.host, is_name);
    if (is_name) {
      TP_ASSIGN_OR_RETURN(addresses, lookup.Addresses(deadline_, stop_));
    }
    std::vector<tcp::endpoint> endpoints;
    for (const std::string& address : addresses)
      endpoints.emplace_back(asio::ip::make_address(address),
                             static_cast<uint16_t>(std::stoi(request_.port)));
    stream_.expires_at(deadline_);
    const Status connected = Step("connect", [&](auto done) {
      stream_.async_connect(endpoints, [done](auto error, auto&&...) { done(error); });
    });
    if (connected.code() == StatusCode::kDeadlineExceeded) return Unavailable("no connection in time");
    TP_RETURN_IF_ERROR(connected);
    http::request<http::string_body> out(http::verb::post, request_.target, 11, request_.body);
    const bool v6 = request_.host.find(':') != std::string::npos;
    out.set(http::field::host, (v6 ? "[" + request_.host + "]" : request_.host) + ":" + request_.port);
    out.set(http::field::content_type, "application/json");
    out.set(http::field::accept, "application/json");
    out.set(http::field::connection, "close");
    out.prepare_payload();
    const Status sent = Step("send", [&](auto done) {
      http::async_write(stream_, out, [done](auto error, size_t) { done(error); });
    });
    // A server that refuses a request by its head (413) answers and closes before it has read the body.
    if (!sent.ok() && sent.code() != StatusCode::kUnavailable) return sent;
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> answer;
    answer.body_limit(request_.answer_bytes_max);
    const Status read = Step("read the answer", [&](auto done) {
      http::async_read(stream_, buffer, answer, [done](auto error, size_t) { done(error); });
    });
    if (!read.ok()) {
      const std::string other =
          OtherProtocol({static_cast<const char*>(buffer.data().data()), buffer.size()});
      if (!other.empty()) return InvalidArgument(other);
      return sent.ok() ? read : sent;
    }
    return HttpAnswer{static_cast<int>(answer.get().result_int()), std::move(answer.get().body())};
  }

 private:
  template <typename Start>
  Status Step(const char* what, Start start) {
    std::optional<beast::error_code> outcome;
    start([&outcome](beast::error_code error) { outcome = error; });
    io_.restart();  // it was out of work after the step before
    if (!stop_.stop_requested()) io_.run_until(deadline_ + std::chrono::milliseconds(50));
    if (stop_.stop_requested()) return {StatusCode::kCancelled, "stopped"};
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

  const HttpRequest& request_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::stop_token& stop_;
  asio::io_context io_{1};
  beast::tcp_stream stream_{io_};
  const std::stop_callback<std::function<void()>> on_stop_;  // last: it uses io_
};

}  // namespace

StatusOr<HttpAnswer> HttpPost(const HttpRequest& request, HostLookup& lookup,
                              std::chrono::steady_clock::time_point deadline, const std::stop_token& stop) {
  try {
    return Call(request, deadline, stop).Run(lookup);
  } catch (const std::exception& problem) {  // Asio: no descriptor is left
    return ResourceExhausted(std::string("HTTP: ") + problem.what());
  }
}

}  // namespace tidepool::workers
