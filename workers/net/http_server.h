#pragma once
// A small HTTP/1.1 server in a process that does something else: the dashboard's (workers/board/board.h), the
// pages that a run's processes show of themselves (watch_pages.h), and the endpoint of a model
// (workers/serve/endpoint.h). It knows nothing of pages. Connections are served by threads of its own, which
// call the handler; the rest of the program never waits for them.
//
// Who may ask: on loopback, a request whose Host is another name than that of loopback is refused, because a
// page of some site can give its name our address (DNS rebinding). With an identity everything is encrypted
// and, where there are `callers`, a caller has to show their certificate first; an address that others can
// reach is listened on with an identity alone. Then the request has to show the key, as `Authorization:
// Bearer KEY` and in no other way; it is compared in constant time, and no body is read before it was shown.
// What open_paths name is answered without it: on loopback, to whoever is on this machine.
//
// The key stands in the fragment of the address that is printed (`#key=`), which no browser sends:
// neither to whoever listens on the port by then, nor to another site as a referrer. `?key=` would be sent
// and logged. A cookie would be worse: it belongs to the host, whatever the port, so every other server on
// 127.0.0.1 that the browser visits would get it. A page keeps the key where pages of its own origin, the
// port included, reach it and no others; and a header that a page has to set is one that another site cannot
// have a browser send.
//
// What a stranger can hold up: a request's head has 8 KiB; a connection that says nothing for idle_timeout_s,
// or does not take its answer, is closed; at most connections_max are open, and one more closes the oldest
// that has not shown the key. So does one more than there are descriptors; half of the process's are left to
// the rest of it. What who has the key can: a body has body_bytes_max, all that are being read
// bodies_bytes_max; of an answer that is written piece by piece kUnsentBytes, and the longest piece beside
// them, may wait for the caller to take them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {

struct HttpRequest {
  std::string method;                        // "GET"
  std::string path;                          // decoded, without the query; begins with '/'
  std::map<std::string, std::string> query;  // decoded; of a name that comes twice the last value
  std::string body;
  [[nodiscard]] std::string Query(const std::string& name) const {
    const auto at = query.find(name);
    return at == query.end() ? "" : at->second;
  }
};

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // besides those that every answer has
};

// One answer, now or later, whole or piece by piece. Any thread. Where the caller is gone, or the answer has
// ended, or its server, calls do nothing.
class HttpReply {
 public:
  virtual ~HttpReply() = default;  // one that was not ended ends: with 500, or by closing the connection
  virtual void Answer(HttpResponse answer) = 0;
  // Status and headers of an answer whose body comes by Write, up to End.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string piece) = 0;
  virtual void End() = 0;
  // Called once, on a thread of the server or at once, if the caller hangs up before the answer has ended. Of
  // a caller that sends its next request before it has this answer it is not seen.
  virtual void OnGone(std::function<void()> gone) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";         // an address of this machine, or "localhost"
  uint16_t port = 0;                      // 0: a free one
  std::string key_digest;                 // SHA-256 of the key, hexadecimal; not empty
  std::set<std::string> open_paths = {};  // read without the key; nothing secret may be there
  // The key of a path that has one of its own, as its digest; "": the server's key. kNotFound: there is
  // nothing at the path, and why. Called by several threads at once.
  std::function<StatusOr<std::string>(const std::string& path)> digest_of = {};
  std::optional<Identity> identity = std::nullopt;
  // With an identity: the role in a caller's certificate (certificates.h); empty: callers need none.
  std::string callers = {};
  int64_t threads = 2;
  int64_t connections_max = 64;
  int64_t body_bytes_max = 0;  // 0: only GET and HEAD are answered
  int64_t bodies_bytes_max = int64_t{64} << 20;
  double idle_timeout_s = 30;
  // How what the server itself refuses is said; null: as a line of text.
  std::function<HttpResponse(int status, const std::string& why)> refusal = {};
  std::string where_key = {};  // to be had, for who does not show it; empty: a dashboard's and a run's
};

class HttpServer {
 public:
  // Called by several threads at once; HEAD comes as GET. What it throws is answered with 500.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // The same, of answers that may come later.
  using LaterHandler = std::function<void(const HttpRequest&, std::shared_ptr<HttpReply>)>;
  static constexpr int64_t kUnsentBytes = 1 << 20;

  // Listens and serves. kAlreadyExists: the port is taken. kInvalidArgument: the host is no address, or one
  // that others can reach and there is no identity. kInternal: no socket.
  static StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Handler handler);
  static StatusOr<std::unique_ptr<HttpServer>> StartLater(const HttpServerOptions& options,
                                                          LaterHandler handler);
  ~HttpServer();  // closes all connections; a handler that works is waited for
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Until every request that came has its whole answer, or for so long. True: they have.
  bool AwaitAnswers(std::chrono::milliseconds patience);

  [[nodiscard]] uint16_t port() const;
  // "http://127.0.0.1:8800", without a path.
  [[nodiscard]] std::string Url() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What may stand in a query: "a b/c" -> "a%20b%2Fc".
std::string PercentEncoded(std::string_view text);
// 256 bits of the kernel's random source, as hexadecimal digits.
StatusOr<std::string> RandomHex();

}  // namespace tidepool::workers
