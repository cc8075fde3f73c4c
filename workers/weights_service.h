#pragma once
// Weights of a published version as a stream, from a device worker with the actor role to one on the
// other side of a split (cluster.weight_transport: stream). Shared memory is the other way, on one host.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::workers {

// Bytes of `version` as they were published, and their digest. They stay as they are while the result lives.
struct PublishedBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  uint64_t digest = 0;
};
using PublishedSource = std::function<StatusOr<PublishedBytes>(Version version)>;

class WeightsServer {
 public:
  // Listens on any free loopback port. Calls without `token` are refused. `source`: any thread.
  static StatusOr<std::unique_ptr<WeightsServer>> Start(const std::string& bind, const std::string& token,
                                                        int64_t max_frame_bytes, PublishedSource source);
  ~WeightsServer();
  [[nodiscard]] std::string address() const;

 private:
  WeightsServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes the bytes of `version` into `arena`. kDataLoss: size or order is wrong. The caller checks the digest.
Status FetchWeights(const std::string& address, const std::string& token, Version version, std::span<std::byte> arena);

}  // namespace tidepool::workers
