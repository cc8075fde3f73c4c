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
#include <memory>
#include <optional>
#include <sstream>
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
constexpr size_t kPieceBytes = 16 << 10;
// For a caller that was refused to read why while it still sends: closed at once, it would read of a reset.
constexpr std::chrono::seconds kLinger{2};

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

// The same, whatever the case of its letters.  word: in lower case
bool IsWord(std::string_view text, std::string_view word) {
  return std::ranges::equal(text, word, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

HttpRequest RequestOf(http::request<http::string_body> from) {
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
  request.body = std::move(from.body());
  return request;
}

// Whether a browser that asks this host can only mean us. Any port: it may come through a tunnel.
// own: the address that is listened on
bool IsLoopbackName(std::string_view host, std::string_view own) {
  const size_t colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  const std::string_view name = host.substr(0, colon);
  const std::string_view port = colon == std::string_view::npos ? std::string_view() : host.substr(colon + 1);
  return (name == "127.0.0.1" || name == "localhost" || name == "[::1]" || name == own) &&
         std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
}

StatusOr<std::shared_ptr<net::ssl::context>> TlsContext(const Identity& identity,
                                                        const std::string& callers) {
  try {
    auto tls = std::make_shared<net::ssl::context>(net::ssl::context::tls_server);
    ::SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION);
    if (!callers.empty()) tls->add_certificate_authority(net::buffer(identity.authority));
    tls->use_certificate_chain(net::buffer(identity.certificate));
    tls->use_private_key(net::buffer(identity.key), net::ssl::context::pem);
    if (callers.empty()) return tls;
    tls->set_verify_mode(net::ssl::verify_peer | net::ssl::verify_fail_if_no_peer_cert);
    tls->set_verify_callback(net::ssl::host_name_verification(CertifiedName(callers)));
    return tls;
  } catch (const boost::system::system_error& e) {
    return InvalidArgument(std::string("the certificate and its key cannot be used: ") + e.what());
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

// An answer between who makes it and the connection that it goes over.
struct Unsent {
  Mutex mu;
  std::optional<HttpResponse> head TP_GUARDED_BY(mu);  // until it is taken
  std::string body TP_GUARDED_BY(mu);                  // of pieces, those that were not taken
  size_t longest TP_GUARDED_BY(mu) = 0;                // of the pieces
  bool begun TP_GUARDED_BY(mu) = false, whole TP_GUARDED_BY(mu) = false;
  bool ended TP_GUARDED_BY(mu) = false;  // nothing comes behind what is here
  bool gone TP_GUARDED_BY(mu) = false;   // nobody is there to take it
  std::function<void()> on_gone TP_GUARDED_BY(mu);

  void Gone() {
    std::function<void()> tell;
    {
      const MutexLock lock(mu);
      gone = true;
      tell = std::exchange(on_gone, nullptr);
    }
    if (tell) tell();
  }
};

// Whether the server is there still. Replies have it, and may outlive the server; what they do with a session
// they do under the lock.
struct Door {
  Mutex mu;
  bool open TP_GUARDED_BY(mu) = true;
};

}  // namespace

struct HttpServer::Impl {
  class Session;
  class Reply;

  Impl(HttpServerOptions given, LaterHandler handler_given)
      : options(std::move(given)), handler(std::move(handler_given)) {}

  const HttpServerOptions options;
  const LaterHandler handler;
  std::unique_ptr<FreshTls> tls;  // with an identity
  const int64_t connections_max = std::min(options.connections_max, HalfOfDescriptors());
  uint16_t port = 0;
  const std::shared_ptr<Door> door = std::make_shared<Door>();
  Mutex mu;
  std::map<int64_t, std::weak_ptr<Session>> sessions TP_GUARDED_BY(mu);
  int64_t next_session TP_GUARDED_BY(mu) = 0;
  int64_t bodies_bytes TP_GUARDED_BY(mu) = 0;  // of the bodies that are being read or handled, at most
  int64_t unanswered TP_GUARDED_BY(mu) = 0;
  Condition answered;
  // After what sessions use: they end with it.
  net::io_context io;
  std::optional<tcp::acceptor> acceptor;
  std::optional<net::steady_timer> again, look;
  std::vector<std::jthread> threads;  // waits: io.stop() ends them, each after the handler that it is in

  void Accept();
  void LookLater();  // at the certificates
  void Open(tcp::socket socket);
  bool TakeRoom(int64_t bytes) {
    const MutexLock lock(mu);
    if (bodies_bytes + bytes > options.bodies_bytes_max && bodies_bytes > 0) return false;
    bodies_bytes += bytes;
    return true;
  }
  void GiveRoom(int64_t bytes) {
    const MutexLock lock(mu);
    bodies_bytes -= bytes;
  }
  void CountUnanswered(int64_t more) {
    {
      const MutexLock lock(mu);
      unanswered += more;
    }
    answered.NotifyAll();
  }
  // The oldest that has not shown the key, which then counts no more; null: all of them belong here.
  std::shared_ptr<Session> TakeOldestStranger();
};

// One connection, on a strand of its own; lives as long as something is under way.
class HttpServer::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket, int64_t id)
      : server_(server),
        stream_(std::move(socket)),
        id_(id),
        buffer_(BufferBytes(server.options)),
        idle_(stream_.get_executor()) {
    if (!server.tls) return;
    context_ = server.tls->Context();
    tls_.emplace(stream_, *context_);
  }
  ~Session() {
    Settle();
    GiveRoom();
    const MutexLock lock(server_.mu);
    server_.sessions.erase(id_);
  }
  [[nodiscard]] bool known() const { return known_; }  // has shown the key; any thread
  void Run() {
    net::post(stream_.get_executor(), [self = shared_from_this()] { self->Greet(); });
  }
  void Close() {
    net::post(stream_.get_executor(), [self = shared_from_this()] { self->GiveUp(); });
  }
  // No thread of the server runs any more.
  void Drop() { kept_.reset(); }
  // There is more of the answer.
  void Wake() {
    net::post(stream_.get_executor(), [self = shared_from_this()] { self->Pump(); });
  }

 private:
  static size_t BufferBytes(const HttpServerOptions& o) {
    return kHeadBytesMax + kDrainBytes + static_cast<size_t>(o.body_bytes_max);
  }
  [[nodiscard]] std::chrono::milliseconds IdleTimeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(1e3 * server_.options.idle_timeout_s));
  }
  void Deadline() { stream_.expires_after(IdleTimeout()); }
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
      http::async_read_header(stream, buffer_, *parser_,
                              [self = shared_from_this()](error_code error, size_t) { self->OnHead(error); });
    });
  }
  void OnHead(error_code error) {
    if (error) return Failed(error);
    const http::request<http::string_body>& head = parser_->get();
    // Where a request ends, and whom it is for, must be plain: whoever passes it on may read it otherwise.
    const auto codings = head.count(http::field::transfer_encoding);
    if (codings > 1 || (codings == 1 && !IsWord(View(head[http::field::transfer_encoding]), "chunked")))
      return Refuse(501, "Transfer-Encoding: chunked alone is read here");
    if (head.count(http::field::host) > 1) return Refuse(400, "there is more than one Host");
    if (const auto refused = Refused(head))
      return Send(*refused, head.version(), head.keep_alive() && parser_->is_done(),
                  head.method() == http::verb::head);
    if (parser_->is_done()) return OnRequest();
    const auto length = parser_->content_length();
    const int64_t bytes = length ? static_cast<int64_t>(*length) : server_.options.body_bytes_max;
    if (!server_.TakeRoom(bytes))
      return Refuse(503, "other requests have taken the room for their bodies; try again",
                    {{"Retry-After", "1"}});
    room_ = bytes;
    if (head.version() < 11 || !IsWord(View(head[http::field::expect]), "100-continue")) return ReadBody();
    static constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
    Over([this](auto& stream) {
      net::async_write(stream, net::buffer(kGoOn), [self = shared_from_this()](error_code failed, size_t) {
        if (failed) return self->stream_.close();
        self->ReadBody();
      });
    });
  }
  void ReadBody() {
    Over([this](auto& stream) {
      http::async_read(stream, buffer_, *parser_, [self = shared_from_this()](error_code failed, size_t) {
        if (failed) return self->Failed(failed);
        self->OnRequest();
      });
    });
  }
  void Failed(error_code error) {
    if (error == http::error::header_limit) return Refuse(431, "the head of the request is too long");
    if (error == http::error::body_limit || error == http::error::buffer_overflow)
      return Refuse(413, "the body of the request is too long; it may have " +
                             std::to_string(server_.options.body_bytes_max) + " bytes");
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return Refuse(400, "this is no HTTP request");
    stream_.close();
  }
  // What is answered to a request before its body is read; nullopt: it is the handler's.
  std::optional<HttpResponse> Refused(const http::request<http::string_body>& head) {
    if (IsLoopback(server_.options.host) &&
        !IsLoopbackName(View(head[http::field::host]), server_.options.host))
      return Refusal(403, "this server answers to its address on loopback, 127.0.0.1 and localhost alone");
    const bool reads = head.method() == http::verb::get || head.method() == http::verb::head;
    if (!reads && server_.options.body_bytes_max == 0)
      return Refusal(405, "only GET and HEAD are answered here", {{"Allow", "GET, HEAD"}});
    const std::string_view bearer = View(head[http::field::authorization]);
    const std::string_view target = View(head.target());
    const std::string path = Decoded(target.substr(0, target.find('?')), false);
    const auto own = server_.options.digest_of ? server_.options.digest_of(path) : StatusOr<std::string>("");
    if (!own.ok()) return Refusal(404, own.status().message());
    if (IsWord(bearer.substr(0, 7), "bearer ") &&
        ConstantTimeEqual(Sha256Hex(bearer.substr(7)), own->empty() ? server_.options.key_digest : *own)) {
      known_ = true;
      return std::nullopt;
    }
    if (reads && parser_->is_done() && server_.options.open_paths.contains(path)) return std::nullopt;
    const std::string& where = server_.options.where_key;
    return Refusal(
        401,
        "The key is missing or not this server's. Send it as `Authorization: Bearer KEY`. " +
            (where.empty()
                 ? "A dashboard's stands behind #key= in the whole address that was printed when it "
                   "was started, and each start has another one; a run's is in "
                   "RUN/security/operator.token."
                 : where),
        {{"WWW-Authenticate", "Bearer"}});
  }
  using Headers = std::vector<std::pair<std::string, std::string>>;
  [[nodiscard]] HttpResponse Refusal(int status, const std::string& why, const Headers& headers = {}) const {
    HttpResponse said{.status = status, .body = why + "\n"};
    if (server_.options.refusal) said = server_.options.refusal(status, why);
    said.headers.insert(said.headers.end(), headers.begin(), headers.end());
    return said;
  }
  void Refuse(int status, const std::string& why, const Headers& headers = {}) {
    Send(Refusal(status, why, headers), 11, /*keep_alive=*/false, /*head=*/false);
  }

  // --- the answer of the handler
  void OnRequest() {
    http::request<http::string_body> whole = parser_->release();
    version_ = whole.version();
    keep_alive_ = whole.keep_alive();
    head_ = whole.method() == http::verb::head;
    HttpRequest request = RequestOf(std::move(whole));
    if (head_) request.method = "GET";
    unsent_ = std::make_shared<Unsent>();
    kept_ = shared_from_this();
    server_.CountUnanswered(1);
    {
      auto reply = MakeReply();
      try {
        server_.handler(request, reply);
      } catch (const std::exception& e) {  // the door of this thread
        reply->Answer(Refusal(500, std::string("internal error: ") + e.what()));
      }
    }
    GiveRoom();
    const MutexLock lock(unsent_->mu);
    if (!unsent_->ended && buffer_.size() == 0) Watch();
  }
  std::shared_ptr<HttpReply> MakeReply();
  // Sees the caller hang up while it waits for its answer.
  void Watch() {
    watching_ = true;
    stream_.expires_never();
    Over([this](auto& stream) {
      stream.async_read_some(
          buffer_.prepare(kDrainBytes),
          [self = shared_from_this()](error_code error, size_t n) { self->Heard(error, n); });
    });
  }
  void Heard(error_code error, size_t bytes) {
    watching_ = false;
    idle_.cancel();
    if (error) return GiveUp();
    buffer_.commit(bytes);  // of the next request
    if (unsent_ == nullptr) Read();
  }
  // Sends what there is of the answer.
  void Pump() {
    if (unsent_ == nullptr || writing_) return;
    std::optional<HttpResponse> first;
    std::string pieces;
    bool whole = false, ended = false, gone = false;
    {
      const MutexLock lock(unsent_->mu);
      first = std::exchange(unsent_->head, std::nullopt);
      pieces = std::exchange(unsent_->body, {});
      whole = unsent_->whole, ended = unsent_->ended, gone = unsent_->gone;
    }
    if (gone) return GiveUp();
    if (whole) {
      writing_ = true;
      return Send(*first, version_, keep_alive_, head_);
    }
    std::string out;
    const bool chunked = version_ >= 11;
    if (first) out = HeadOf(*first, chunked);
    if (head_) pieces.clear();
    if (!pieces.empty() && chunked) {
      std::ostringstream size;
      size << std::hex << pieces.size();
      out += size.str() + "\r\n" + pieces + "\r\n";
    } else {
      out += pieces;
    }
    if (ended && chunked && !head_) out += "0\r\n\r\n";
    if (out.empty() && !ended) return;
    writing_ = true;
    Deadline();
    auto text = std::make_shared<std::string>(std::move(out));
    Over([&](auto& stream) {
      net::async_write(stream, net::buffer(*text),
                       [self = shared_from_this(), text, ended, chunked](error_code error, size_t) {
                         self->writing_ = false;
                         if (error) return self->GiveUp();
                         if (ended) return self->Answered(self->keep_alive_ && chunked);
                         self->Pump();
                       });
    });
  }
  std::string HeadOf(const HttpResponse& answer, bool chunked) const {
    http::response<http::empty_body> response(static_cast<http::status>(answer.status), version_);
    SetHeaders(response, answer);
    response.keep_alive(keep_alive_ && chunked);
    response.chunked(chunked);
    std::ostringstream out;
    out << response.base();
    return out.str();
  }
  // The answer is with the caller.
  void Answered(bool keep_alive) {
    Settle();
    if (!keep_alive) return stream_.close();
    if (!watching_) return Read();
    idle_.expires_after(IdleTimeout());
    idle_.async_wait([self = shared_from_this()](error_code ended) {
      if (!ended && self->watching_ && self->unsent_ == nullptr) self->stream_.close();
    });
  }
  void GiveUp() {
    const std::shared_ptr<Unsent> unsent = unsent_;
    Settle();
    if (unsent != nullptr) unsent->Gone();
    stream_.close();
  }
  void Settle() {
    if (std::exchange(unsent_, nullptr) != nullptr) server_.CountUnanswered(-1);
    kept_.reset();  // whoever calls this has another
  }
  void GiveRoom() {
    if (room_ > 0) server_.GiveRoom(std::exchange(room_, 0));
  }

  template <typename Body>
  static void SetHeaders(http::response<Body>& response, const HttpResponse& answer) {
    response.set(http::field::content_type, answer.type);
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("X-Frame-Options", "DENY");
    response.set("Referrer-Policy", "no-referrer");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    response.set("Cross-Origin-Opener-Policy", "same-origin");
    response.set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
    for (const auto& [name, value] : answer.headers) response.set(name, value);
  }
  // A whole answer: the handler's, or a refusal.
  void Send(const HttpResponse& answer, unsigned version, bool keep_alive, bool head) {
    auto response = std::make_shared<http::response<http::string_body>>(
        static_cast<http::status>(answer.status), version);
    SetHeaders(*response, answer);
    response->keep_alive(keep_alive);
    response->content_length(answer.body.size());
    if (!head) response->body() = answer.body;
    Deadline();
    Over([&](auto& stream) {
      http::async_write(stream, *response, [self = shared_from_this(), response](error_code error, size_t) {
        self->writing_ = false;
        if (error) return self->GiveUp();
        if (self->unsent_ != nullptr) return self->Answered(!response->need_eof());
        if (response->need_eof()) return self->Linger();
        self->Read();
      });
    });
  }
  void Linger() {
    error_code ignored;  // the caller may be gone
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLinger);
    discarded_.resize(kPieceBytes);
    Discard();
  }
  void Discard() {
    stream_.async_read_some(net::buffer(discarded_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->stream_.close();
      self->Discard();
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
  int64_t room_ = 0;  // of bodies_bytes_max, that it has taken
  net::steady_timer idle_;
  // Of the request that is being answered.
  unsigned version_ = 11;
  bool keep_alive_ = false, head_ = false;
  std::shared_ptr<Unsent> unsent_;  // null: none is
  std::shared_ptr<Session> kept_;   // itself, while nothing else may be under way but the answer
  bool writing_ = false, watching_ = false;
  std::string discarded_;
};

class HttpServer::Impl::Reply : public HttpReply {
 public:
  Reply(std::shared_ptr<Door> door, std::weak_ptr<Session> session, std::shared_ptr<Unsent> unsent)
      : door_(std::move(door)), session_(std::move(session)), unsent_(std::move(unsent)) {}
  ~Reply() override {
    bool begun = false;
    {
      const MutexLock lock(unsent_->mu);
      if (unsent_->ended || unsent_->gone) return;
      begun = unsent_->begun;
    }
    if (!begun) {
      Answer({.status = 500, .body = "internal error: the request was not answered\n"});
    } else {
      With(&Session::Close);
    }
  }
  void Answer(HttpResponse answer) override {
    {
      const MutexLock lock(unsent_->mu);
      if (unsent_->ended || unsent_->gone || unsent_->begun) return;
      unsent_->head = std::move(answer);
      unsent_->begun = unsent_->whole = unsent_->ended = true;
    }
    Wake();
  }
  void Begin(HttpResponse head) override {
    {
      const MutexLock lock(unsent_->mu);
      if (unsent_->ended || unsent_->gone || unsent_->begun) return;
      unsent_->head = std::move(head);
      unsent_->begun = true;
    }
    Wake();
  }
  void Write(std::string piece) override {
    bool full = false;
    {
      const MutexLock lock(unsent_->mu);
      if (unsent_->ended || unsent_->gone) return;
      unsent_->longest = std::max(unsent_->longest, piece.size());
      full = unsent_->body.size() + piece.size() > static_cast<size_t>(kUnsentBytes) + unsent_->longest;
      if (!full) unsent_->body += piece;
    }
    if (full) unsent_->Gone();  // it does not take what it is sent
    Wake();
  }
  void End() override {
    {
      const MutexLock lock(unsent_->mu);
      if (unsent_->ended || unsent_->gone) return;
      unsent_->ended = true;
    }
    Wake();
  }
  void OnGone(std::function<void()> gone) override {
    {
      const MutexLock lock(unsent_->mu);
      if (!unsent_->gone) {
        unsent_->on_gone = std::move(gone);
        return;
      }
    }
    gone();
  }

 private:
  void Wake() { With(&Session::Wake); }
  void With(void (Session::*call)()) {
    const MutexLock lock(door_->mu);
    if (!door_->open) return;
    if (const auto session = session_.lock()) ((*session).*call)();
  }
  const std::shared_ptr<Door> door_;
  const std::weak_ptr<Session> session_;
  const std::shared_ptr<Unsent> unsent_;
};

std::shared_ptr<HttpReply> HttpServer::Impl::Session::MakeReply() {
  return std::make_shared<Reply>(server_.door, weak_from_this(), unsent_);
}

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
  {
    const MutexLock lock(impl_->door->mu);
    impl_->door->open = false;
  }
  std::vector<std::shared_ptr<Impl::Session>> left;  // they go without the lock
  {
    const MutexLock lock(impl_->mu);
    for (const auto& [id, session] : impl_->sessions) left.push_back(session.lock());
  }
  for (const auto& session : left) {
    if (session != nullptr) session->Drop();
  }
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  return StartLater(options, [handler = std::move(handler)](const HttpRequest& request,
                                                            const std::shared_ptr<HttpReply>& reply) {
    reply->Answer(handler(request));
  });
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::StartLater(const HttpServerOptions& options,
                                                             LaterHandler handler) {
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

bool HttpServer::AwaitAnswers(std::chrono::milliseconds patience) {
  const MutexLock lock(impl_->mu);
  return impl_->answered.WaitFor(impl_->mu, patience,
                                 [&]() TP_REQUIRES(impl_->mu) { return impl_->unanswered == 0; });
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
