#include "workers/net/http_server.h"

#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>

#include "core/base/disk_thread.h"
#include "core/base/hash.h"
#include "core/base/loopback.h"
#include "core/base/thread_annotations.h"

namespace tidepool::workers {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;

constexpr uint32_t kHeadBytesMax = 8 << 10;
constexpr size_t kDrainBytes = 16 << 10;  // of a request, beyond its body

std::string_view View(boost::string_view text) { return {text.data(), text.size()}; }

// "%41+" -> "A "; a percent sign that begins no such number stays. plus: '+' is a space.
std::string Decoded(std::string_view text, bool plus) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2]));
      i += 2;
    } else {
      out += plus && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

HttpRequest RequestOf(const http::request<http::string_body>& from) {
  HttpRequest request;
  request.method = std::string(View(from.method_string()));
  std::string_view target = View(from.target());
  const size_t question = target.find('?');
  request.path = Decoded(target.substr(0, question), false);
  target = question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
  while (!target.empty()) {
    const std::string_view part = target.substr(0, target.find('&'));
    target.remove_prefix(std::min(target.size(), part.size() + 1));
    const size_t equals = part.find('=');
    request.query[Decoded(part.substr(0, equals), true)] =
        equals == std::string_view::npos ? "" : Decoded(part.substr(equals + 1), true);
  }
  request.body = from.body();
  return request;
}

// Whether a browser that asks this host can only mean us. Any port: it may come through a tunnel.
bool IsLoopbackName(std::string_view host) {
  const size_t colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  const std::string_view name = host.substr(0, colon);
  const std::string_view port = colon == std::string_view::npos ? std::string_view() : host.substr(colon + 1);
  return (name == "127.0.0.1" || name == "localhost" || name == "[::1]") &&
         std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
}

StatusOr<std::shared_ptr<net::ssl::context>> TlsContext(const Identity& identity,
                                                        const std::string& callers) {
  try {
    auto tls = std::make_shared<net::ssl::context>(net::ssl::context::tls_server);
    ::SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION);
    tls->add_certificate_authority(net::buffer(identity.authority));
    tls->use_certificate_chain(net::buffer(identity.certificate));
    tls->use_private_key(net::buffer(identity.key), net::ssl::context::pem);
    tls->set_verify_mode(net::ssl::verify_peer | net::ssl::verify_fail_if_no_peer_cert);
    tls->set_verify_callback(net::ssl::host_name_verification(CertifiedName(callers)));
    return tls;
  } catch (const boost::system::system_error& e) {
    return InvalidArgument(std::string("the certificates of the job cannot be used: ") + e.what());
  }
}

// What new connections are encrypted with: by the files of an identity as they were at the last look.
// Thread-safe.
class FreshTls {
 public:
  static StatusOr<std::unique_ptr<FreshTls>> Create(const Identity& identity, const std::string& callers) {
    auto state = std::make_shared<State>(identity, callers);
    TP_ASSIGN_OR_RETURN(auto context, TlsContext(identity, callers));
    state->Use(std::move(context));
    return std::unique_ptr<FreshTls>(new FreshTls(std::move(state)));
  }
  // Waits for nobody: the disk may hang.
  void Look() {
    if (disk_.Busy()) return;
    disk_.Do("look at certificates", [state = state_](const DiskThread::Say&) { state->Look(); });
  }
  // A connection owns it.
  [[nodiscard]] std::shared_ptr<net::ssl::context> Context() const {
    const MutexLock lock(state_->mu);
    return state_->context;
  }

 private:
  struct State {
    State(Identity i, std::string c) : identity(std::move(i)), callers(std::move(c)) {}
    void Use(std::shared_ptr<net::ssl::context> next) {
      const MutexLock lock(mu);
      context = std::move(next);
    }
    void Look() {
      Identity now = Newest(identity);
      if (now.authority == identity.authority && now.certificate == identity.certificate) return;
      auto next = TlsContext(now, callers);
      if (!next.ok()) return;  // the present ones go on, and it looks again
      identity = std::move(now);
      Use(*std::move(next));
    }
    Identity identity;  // of the thread that looks
    const std::string callers;
    Mutex mu;
    std::shared_ptr<net::ssl::context> context TP_GUARDED_BY(mu);
  };
  explicit FreshTls(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
  DiskThread disk_;
};

int64_t HalfOfDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1 << 20;
  return std::max<int64_t>(1, static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 2);
}

}  // namespace

struct HttpServer::Impl {
  class Session;

  Impl(HttpServerOptions given, Handler handler_given)
      : options(std::move(given)), handler(std::move(handler_given)) {}

  const HttpServerOptions options;
  const Handler handler;
  std::unique_ptr<FreshTls> tls;  // with an identity
  const int64_t connections_max = std::min(options.connections_max, HalfOfDescriptors());
  uint16_t port = 0;
  Mutex mu;
  std::map<int64_t, std::weak_ptr<Session>> sessions TP_GUARDED_BY(mu);
  int64_t next_session TP_GUARDED_BY(mu) = 0;
  // After what sessions use: they end with it.
  net::io_context io;
  std::optional<tcp::acceptor> acceptor;
  std::optional<net::steady_timer> again, look;
  std::vector<std::jthread> threads;  // waits: io.stop() ends them, each after the handler that it is in

  void Accept();
  void LookLater();  // at the certificates
  void Open(tcp::socket socket);
  // The oldest that has not shown the key, which then counts no more; null: all of them belong here.
  std::shared_ptr<Session> TakeOldestStranger();
};

// One connection, on a strand of its own; lives as long as something is under way.
class HttpServer::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket, int64_t id)
      : server_(server), stream_(std::move(socket)), id_(id), buffer_(BufferBytes(server.options)) {
    if (!server.tls) return;
    context_ = server.tls->Context();
    tls_.emplace(stream_, *context_);
  }
  ~Session() {
    const MutexLock lock(server_.mu);
    server_.sessions.erase(id_);
  }
  [[nodiscard]] bool known() const { return known_; }  // has shown the key; any thread
  void Run() {
    net::post(stream_.get_executor(), [self = shared_from_this()] { self->Greet(); });
  }
  void Close() {
    net::post(stream_.get_executor(), [self = shared_from_this()] { self->stream_.close(); });
  }

 private:
  static size_t BufferBytes(const HttpServerOptions& o) {
    return kHeadBytesMax + kDrainBytes + static_cast<size_t>(o.body_bytes_max);
  }
  void Deadline() {
    stream_.expires_after(
        std::chrono::milliseconds(static_cast<int64_t>(1e3 * server_.options.idle_timeout_s)));
  }
  void Greet() {
    if (!tls_) return Read();
    Deadline();
    tls_->async_handshake(net::ssl::stream_base::server, [self = shared_from_this()](error_code error) {
      // Not by the error alone: it comes from OpenSSL's queue of errors, and nothing may be read before.
      if (error || ::SSL_is_init_finished(self->tls_->native_handle()) != 1) return self->stream_.close();
      self->Read();
    });
  }
  // What requests and answers go over.
  template <typename Use>
  void Over(Use use) {
    if (tls_) {
      use(*tls_);
    } else {
      use(stream_);
    }
  }
  void Read() {
    parser_.emplace();
    parser_->header_limit(kHeadBytesMax);
    parser_->body_limit(static_cast<uint64_t>(server_.options.body_bytes_max));
    Deadline();  // of the whole request: one that trickles in is cut, too
    Over([this](auto& stream) {
      http::async_read(stream, buffer_, *parser_,
                       [self = shared_from_this()](error_code error, size_t) { self->Answer(error); });
    });
  }
  void Answer(error_code error) {
    if (error == http::error::header_limit) return Refuse(431, "the head of the request is too long");
    if (error == http::error::body_limit || error == http::error::buffer_overflow)
      return Refuse(413, "the body of the request is too long");
    if (error) {
      if (error.category() == http::make_error_code(http::error::bad_method).category() &&
          error != http::error::end_of_stream && error != http::error::partial_message)
        return Refuse(400, "this is no HTTP request");
      return stream_.close();
    }
    const http::request<http::string_body>& request = parser_->get();
    const bool head = request.method() == http::verb::head;
    HttpResponse answer = Checked(request);
    Send(answer, request.version(), request.keep_alive(), head);
  }
  HttpResponse Checked(const http::request<http::string_body>& from) {
    if (IsLoopback(server_.options.host) && !IsLoopbackName(View(from[http::field::host])))
      return {.status = 403, .body = "this server answers to 127.0.0.1 and localhost alone\n"};
    HttpRequest request = RequestOf(from);
    if (request.method == "HEAD") request.method = "GET";
    if (request.method != "GET" && server_.options.body_bytes_max == 0)
      return {.status = 405,
              .body = "only GET and HEAD are answered here\n",
              .headers = {{"Allow", "GET, HEAD"}}};
    const std::string_view bearer = View(from[http::field::authorization]);
    if (bearer.starts_with("Bearer ") &&
        ConstantTimeEqual(Sha256Hex(bearer.substr(7)), server_.options.key_digest)) {
      known_ = true;
    } else if (!server_.options.open_paths.contains(request.path)) {
      return Stranger();
    }
    try {
      return server_.handler(request);
    } catch (const std::exception& e) {  // the door of this thread
      return {.status = 500, .body = std::string("internal error: ") + e.what() + "\n"};
    }
  }
  static HttpResponse Stranger() {
    return {
        .status = 401,
        .body =
            "The key is missing or not this server's. Send it as `Authorization: Bearer KEY`. A dashboard's "
            "stands behind #key= in the whole address that was printed when it was started, and each start "
            "has another one; a run's is in RUN/security/operator.token.\n",
        .headers = {{"WWW-Authenticate", "Bearer"}}};
  }
  void Refuse(int status, const char* why) {
    Send({.status = status, .body = std::string(why) + "\n"}, 11, /*keep_alive=*/false, /*head=*/false);
  }
  void Send(const HttpResponse& answer, unsigned version, bool keep_alive, bool head) {
    auto response = std::make_shared<http::response<http::string_body>>(
        static_cast<http::status>(answer.status), version);
    response->set(http::field::content_type, answer.type);
    response->set(http::field::cache_control, "no-store");
    response->set("X-Content-Type-Options", "nosniff");
    response->set("X-Frame-Options", "DENY");
    response->set("Referrer-Policy", "no-referrer");
    response->set("Cross-Origin-Resource-Policy", "same-origin");
    response->set("Cross-Origin-Opener-Policy", "same-origin");
    response->set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
    for (const auto& [name, value] : answer.headers) response->set(name, value);
    response->keep_alive(keep_alive);
    response->content_length(answer.body.size());
    if (!head) response->body() = answer.body;
    Deadline();
    Over([&](auto& stream) {
      http::async_write(stream, *response, [self = shared_from_this(), response](error_code error, size_t) {
        if (error || response->need_eof()) return self->stream_.close();
        self->Read();
      });
    });
  }

  Impl& server_;
  boost::beast::tcp_stream stream_;
  std::shared_ptr<net::ssl::context> context_;
  std::optional<net::ssl::stream<boost::beast::tcp_stream&>> tls_;
  const int64_t id_;
  std::atomic<bool> known_ = false;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
};

std::shared_ptr<HttpServer::Impl::Session> HttpServer::Impl::TakeOldestStranger() {
  std::vector<std::shared_ptr<Session>> seen;  // the last reference to one may not go under the lock
  const MutexLock lock(mu);
  for (auto it = sessions.begin(); it != sessions.end(); ++it) {
    seen.push_back(it->second.lock());
    if (seen.back() == nullptr || seen.back()->known()) continue;
    sessions.erase(it);  // now, or the next one that comes would choose it again
    return seen.back();
  }
  return nullptr;
}

void HttpServer::Impl::Open(tcp::socket socket) {
  const auto full = [this] {
    const MutexLock lock(mu);
    return static_cast<int64_t>(sessions.size()) >= connections_max;
  };
  if (full()) {
    const auto oldest = TakeOldestStranger();
    if (oldest == nullptr) return;  // the socket closes
    oldest->Close();
  }
  std::shared_ptr<Session> fresh;
  {
    const MutexLock lock(mu);
    fresh = std::make_shared<Session>(*this, std::move(socket), next_session);
    sessions[next_session++] = fresh;
  }
  fresh->Run();
}

void HttpServer::Impl::Accept() {
  acceptor->async_accept(net::make_strand(io), [this](error_code error, tcp::socket socket) {
    if (error == net::error::operation_aborted) return;
    if (!error) {
      Open(std::move(socket));
      return Accept();
    }
    // No descriptor is free, or so: soon there is one, if a stranger has it, or else later.
    const auto oldest = TakeOldestStranger();
    if (oldest != nullptr) oldest->Close();
    again->expires_after(std::chrono::milliseconds(oldest != nullptr ? 5 : 100));
    again->async_wait([this](error_code ended) {
      if (!ended) Accept();
    });
  });
}

void HttpServer::Impl::LookLater() {
  look->expires_after(std::chrono::seconds(LooksEvery(*options.identity)));
  look->async_wait([this](error_code ended) {
    if (ended) return;
    tls->Look();
    LookLater();
  });
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->io.stop();
  impl_->threads.clear();
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  const std::string address = JoinHostPort(options.host, options.port);
  if (!IsLoopback(options.host) && !options.identity)
    return InvalidArgument(address + ": others can reach it, and there are no certificates");
  error_code error;
  const net::ip::address host = options.host == "localhost"
                                    ? net::ip::make_address("127.0.0.1")
                                    : net::ip::make_address(std::string(BareHost(options.host)), error);
  if (error) return InvalidArgument(options.host + ": is no address of this machine, as 10.0.0.7");
  if (options.identity) {
    TP_ASSIGN_OR_RETURN(impl->tls, FreshTls::Create(*options.identity, options.callers));
  }
  const tcp::endpoint endpoint(host, options.port);
  const auto strand = net::make_strand(impl->io);
  impl->acceptor.emplace(strand);
  impl->again.emplace(strand);
  impl->look.emplace(strand);
  tcp::acceptor& acceptor = *impl->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error == net::error::address_in_use)
    return AlreadyExists(address +
                         ": another program listens there; name another port, or none for a free one");
  if (error == net::error::access_denied)
    return PermissionDenied(address +
                            ": this port is not for you; name one above 1023, or none for a free one");
  if (error) return Internal(address + ": cannot be listened on (" + error.message() + ")");
  impl->port = acceptor.local_endpoint(error).port();
  impl->Accept();
  if (impl->tls && !options.identity->folder.empty()) impl->LookLater();
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(impl)));
  for (int64_t i = 0; i < options.threads; ++i)
    server->impl_->threads.emplace_back([&io = server->impl_->io] { io.run(); });
  return server;
}

uint16_t HttpServer::port() const { return impl_->port; }

std::string HttpServer::Url() const {
  return (impl_->tls ? "https://" : "http://") + JoinHostPort(impl_->options.host, impl_->port);
}

std::string PercentEncoded(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
        c == '.') {
      out += c;
    } else {
      out += {'%', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return out;
}

StatusOr<std::string> RandomHex() {
  std::array<uint8_t, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return Unavailable("the kernel gave no random bytes for a key");
  return Hex(bytes);
}

}  // namespace tidepool::workers
