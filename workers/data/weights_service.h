#pragma once
// What one device worker has and another needs, as a stream: the weights of a published version (for a
// rollout worker elsewhere, cluster.weight_transport: stream; shared memory is the other way, on one
// host), or the whole state of training after a step (for a newcomer to the training group).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/base/weight_pieces.h"
#include "core/device/byte_store.h"
#include "workers/net/certificates.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tidepool::workers {

// Weights that the reader has whole, so that what differs from them may be sent instead.
struct WeightsBase {
  Version version;
  uint64_t digest = 0;
  int64_t word_bytes = 0;  // of a weight; 0: there are none
};
struct WantedBytes {
  Version version;   // weights as published, or,
  StepNumber step;   // if valid, weights, master and moments after this step
  int64_t from = 0;  // of weights: bytes that are there already
  WeightsBase base;  // of weights
};

// The bytes and their digest. A state: parts one behind the other, and StateDigest; a step that begins may
// overwrite it, which the digest tells. Weights: the sums of their pieces, Weights::Digest, and a function
// that copies bytes which are there, or waits for them; kUnavailable: they are gone.
struct PublishedBytes {
  std::shared_ptr<const void> owner;
  std::vector<device::ByteSource> parts;
  uint64_t digest = 0;
  WeightPieces pieces;
  std::function<Status(size_t at, std::span<std::byte> out)> copy;
  // Where the wanted base is here, too: shows bytes of it. False: it has given its place to others by now.
  using Reader = std::function<void(std::span<const std::byte>)>;
  std::function<bool(size_t at, size_t size, const Reader& reader)> base;
};
using PublishedSource = std::function<StatusOr<PublishedBytes>(const WantedBytes& wanted)>;

class WeightsServer {
 public:
  // Listens on any free port of `bind`. Callers need the same token, and a certificate of the same role where
  // there are any. `source`: any thread.
  static StatusOr<std::unique_ptr<WeightsServer>> Start(const std::string& bind,
                                                        const Credentials& credentials,
                                                        int64_t max_frame_bytes, PublishedSource source);
  ~WeightsServer();
  [[nodiscard]] std::string address() const;

 private:
  WeightsServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The way to a source, which stays for a next fetch that comes soon: of small weights a handshake takes as
// long as all their bytes. One of before may be dead without knowing it. Thread-safe.
class SourceConnection {
 public:
  // kFailedPrecondition: the address is on another host and there is no identity.
  StatusOr<std::shared_ptr<grpc::Channel>> To(const std::string& address, const Credentials& credentials);
  // It has not brought what was wanted: the next fetch dials anew.
  void Forget(const std::shared_ptr<grpc::Channel>& channel);

 private:
  Mutex mu_;
  std::string address_ TP_GUARDED_BY(mu_);
  std::optional<Identity> identity_ TP_GUARDED_BY(mu_);  // that it was made with
  std::shared_ptr<grpc::Channel> channel_ TP_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point asked_ TP_GUARDED_BY(mu_);
};

struct FetchedBytes {
  int64_t at = 0, size = 0;         // of the whole
  std::span<const std::byte> data;  // these bytes, or,
  bool changes = false;             // if true, what differs in them from those of the base
};
// Reads what is wanted: `head` gets what the source says first, `take` the bytes in order. Their errors end
// it, and so does `stop` (kCancelled). kDataLoss: size or order is wrong. kUnauthenticated: the token is not
// shown. kDeadlineExceeded: nothing came for half a minute. Errors of SourceConnection.
Status Fetch(SourceConnection& over, const std::string& address, const Credentials& credentials,
             const WantedBytes& wanted, int64_t total,
             const std::function<Status(uint64_t digest, WeightPieces pieces)>& head,
             const std::function<Status(const FetchedBytes& bytes)>& take, const std::stop_token& stop = {});

// Writes what is wanted into `parts`, which have the sizes of the source's, and returns the digest that the
// source announced: the caller compares it with what came. Errors of Fetch.
StatusOr<uint64_t> FetchBytes(const std::string& address, const Credentials& credentials,
                              const WantedBytes& wanted, std::span<const device::ByteStore> parts);

}  // namespace tidepool::workers
