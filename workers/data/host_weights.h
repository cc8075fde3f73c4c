#pragma once
// The copies of published weights that a host has, for everybody on it, and for other hosts.
//
// One process of a host brings a version there: the trainer that publishes it, or one worker that pulls it
// from another host. The copy lies in shared memory (shared_arena.h), where the host's other workers read it.
// While it is still coming, pieces that are here and were checked are passed on, so hosts form a chain in
// which all receive at the same time and each sends the weights once. A piece is checked against the list of
// sums that the source sends first, and that list against the published digest, which the controller names.
//
// Where shared memory has no room, a copy lies in the memory of its process: then the others of the host pull
// from it.
//
// Publish, Read, Pull and Forget are called by the device thread, Open by any.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/base/weight_pieces.h"
#include "core/device/byte_store.h"
#include "workers/data/shared_arena.h"
#include "workers/data/weights_service.h"

namespace tidepool::workers {

class HostWeights {
 public:
  // `folder`: SharedBlock::FolderOf the run.
  explicit HostWeights(std::string folder);
  ~HostWeights();

  // `shared`: in shared memory or not at all; errors of SharedBlock::Begin.
  Status Publish(const Version& version, uint64_t digest, const device::ByteSource& weights, bool shared);
  // From this host's shared memory into `out`; returns the digest that the copy has. kNotFound: it is not
  // there.
  StatusOr<uint64_t> Read(const Version& version, const device::ByteStore& out) const;
  // From the worker at `address` to this host, and into `out`. kDataLoss: other bytes than `digest` says.
  Status Pull(const std::string& address, const Credentials& credentials, const Version& version,
              uint64_t digest, const device::ByteStore& out);
  // What is here, or comes within `patience`. kNotFound: nothing of that version.
  StatusOr<PublishedBytes> Open(const Version& version, std::chrono::milliseconds patience);
  // Nothing is passed on any more, and what lies in this process is given back.
  void Forget();
  [[nodiscard]] int64_t held_bytes() const;  // of copies in this process's own memory

 private:
  struct Copy;
  // Memory for a copy, in place of the oldest.
  StatusOr<std::shared_ptr<Copy>> Begin(const Version& version, uint64_t digest, int64_t bytes, bool shared);

  mutable Mutex mu_;
  Condition begun_;
  SharedBlock block_;
  std::vector<std::shared_ptr<Copy>> copies_
      TP_GUARDED_BY(mu_);  // that this process brought here, two at most
};

}  // namespace tidepool::workers
