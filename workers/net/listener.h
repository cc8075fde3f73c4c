#pragma once
// The door of a gRPC server: accepts connections itself and hands their sockets to gRPC.
//
// gRPC 1.51 stops accepting for good once a process has run out of descriptors (CVE-2023-4785). So no
// stranger may use them up, and running out has to pass:
//   - a connection counts as a stranger's until a call on it has shown a token (Authenticated). There are at
//     most kStrangers of them that are not cut, fewer where the process may open few files, and each is cut
//     after kPatience; its descriptor goes when gRPC has seen that.
//     More than that wait in the kernel's queue, and the oldest stranger makes room after kMakeRoom;
//   - a connection without a call is closed after kPatience, so that the connection of a worker that was
//     refused ends, even where that worker never reads why;
//   - a connection that would take one of the last kReserve descriptors is closed at once: journal, payload
//     and checkpoints find theirs;
//   - where none is left all the same, a spare one is closed to accept and close whoever waits, and opened
//     again.
// Thread-safe; one thread of its own.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace grpc {
class ServerBuilder;
class ServerCredentials;
class ServerContext;
}  // namespace grpc

struct sockaddr_storage;

namespace tidepool::workers {

// The other side of a connection: "ipv4:10.0.0.1:40123", "ipv6:[::1]:40123". An IPv4 address in an IPv6 one
// is an IPv4 address.
std::string PeerName(const sockaddr_storage& address);
// The same of gRPC's text (ServerContext::peer), which escapes characters: "ipv6:%5B::1%5D:40123".
std::string PeerName(const std::string& peer);

class Listener {
 public:
  static constexpr int64_t kStrangers = 64;
  static constexpr auto kPatience =
      std::chrono::seconds(5);  // from connect to the first call with a token; without a call
  static constexpr auto kMakeRoom = std::chrono::milliseconds(250);
  static constexpr int kReserve = 32;

  // Listens on host:port (0: any free one). Raises this process's soft limit of open files to the hard one.
  // kUnavailable: the port is taken or may not be used.
  static StatusOr<std::unique_ptr<Listener>> Open(const std::string& host, int64_t port);
  // Builds and starts the server of `builder`, which has its services and no port, and serves it connections.
  // Once. The services outlive the listener.
  Status Serve(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);
  ~Listener();  // Stop
  // Accepts no more; calls that are under way have a moment to end, then they are cancelled.
  void Stop();

  [[nodiscard]] const std::string& address() const;  // "127.0.0.1:40123", "[::1]:40123"
  // A call of this peer (grpc::ServerContext::peer) has shown a token: its connection may stay.
  void Authenticated(const std::string& peer);
  // Of a server whose callers have one token: the same, where the call shows it. kUnauthenticated names
  // `call`.
  Status Admit(const grpc::ServerContext& context, const std::string& call, const std::string& token);

 private:
  Listener();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
