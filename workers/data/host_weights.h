#pragma once
// The copies of published weights that a host has, for everybody on it, and for other hosts.
//
// One process of a host brings a version there: the trainer that publishes it, or one worker that pulls it
// from another host. The copy lies in shared memory (shared_arena.h), where the host's other workers read it.
// While it is still coming, pieces that are here and were checked are passed on, so hosts form a chain in
// which all receive at the same time and each sends the weights once. A piece is checked against the list of
// sums that the source sends first, and that list against the published digest, which the controller names.
//
// Whoever pulls says what its host has already, and where the source has that, too, only what differs comes
// (core/base/weight_changes.h). The source lends such a base, and does not keep it: the next version takes
// its place, and the rest comes as it is.
//
// Two copies are kept (by all of a host's processes together), and a third where it has to be: a copy that
// somebody reads stays until that one has it, however many versions are published meanwhile, or else a host
// whose link is slower than the steps would never have one whole; and while a version is pulled, the newest
// that is whole stays. Where shared memory has no room, and the third, lie in the memory of their process:
// then the others of the host pull from it.
//
// Thread-safe: the device thread publishes and reads while another one pulls, and any may open.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
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

class HostWeights : public std::enable_shared_from_this<HostWeights> {
 public:
  // `folder`: SharedBlock::FolderOf the run. `word_bytes`: of a weight.
  explicit HostWeights(std::string folder, int64_t word_bytes = 2);
  ~HostWeights();

  // `shared`: in shared memory or not at all; errors of SharedBlock::Begin.
  Status Publish(const Version& version, uint64_t digest, const device::ByteSource& weights, bool shared);
  // From this process's copy, or the host's shared memory, into `out`; returns the digest that the copy has.
  // kNotFound: it is not there, or not whole.
  StatusOr<uint64_t> Read(const Version& version, const device::ByteStore& out) const;
  // A copy that is whole, and stays where it is for as long as this lives.
  struct Whole {
    Version version;
    uint64_t digest = 0;
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> memory;  // null: there is none
  };
  // For whoever needs some of it: where it stands, in this process or in the host's shared memory. kNotFound.
  StatusOr<Whole> Look(const Version& version) const;
  // From another worker to this host; nothing is to be done where it is here. `came`: some more of it is
  // here, after so many bytes over the network. kDataLoss: other bytes than `digest` says; kCancelled:
  // `stop`; other errors of Fetch.
  struct Source {
    std::string address;
    const Credentials& credentials;
  };
  Status Pull(
      const Source& from, const Version& version, uint64_t digest, int64_t bytes,
      const std::function<void(int64_t bytes)>& came = [](int64_t) {}, const std::stop_token& stop = {});
  // What is here, or comes. Whoever reads may have been told before the one that brings it here, so it is
  // waited for: until it begins, or a newer one does, or it failed, or for half a minute. kNotFound: nothing
  // of that version. `base`: what whoever reads has already.
  StatusOr<PublishedBytes> Open(const Version& version, const WeightsBase& base = {});
  // Somebody has found other bytes than its digest says. Where they are so here, it is here no more, and Pull
  // brings it again.
  void LookAgain(const Version& version);
  // Nothing is passed on any more, and what lies in this process is given back.
  void Forget();
  [[nodiscard]] int64_t held_bytes() const;  // of copies in this process's own memory

 private:
  struct Copy;
  // The newest of so many bytes, but for that version.
  [[nodiscard]] Whole Newest(int64_t bytes, const Version& but) const;
  StatusOr<PublishedBytes> OpenVersion(const Version& version);
  void LendBase(const WeightsBase& base, PublishedBytes& out) const;
  enum class Use : uint8_t { kPublish, kPull };
  // Memory for a copy, in place of one that nobody reads. kPull: not of the newest that is whole.
  StatusOr<std::shared_ptr<Copy>> Begin(const Version& version, uint64_t digest, int64_t bytes, bool shared,
                                        Use use);
  void MakeRoom(Use use) TP_REQUIRES(mu_);
  // Nobody fills its memory while the caller has it. Null: it is not here, or its memory has something else.
  struct Held;
  [[nodiscard]] std::shared_ptr<const Held> Find(const Version& version) const TP_REQUIRES(mu_);
  void Drop(const std::shared_ptr<Copy>& copy) TP_EXCLUDES(mu_);

  mutable Mutex mu_;
  Condition changed_;  // of what follows
  const int64_t word_bytes_;
  SharedBlock block_;                                             // Begin under mu_
  SourceConnection connection_;                                   // of Pull
  Version failed_ TP_GUARDED_BY(mu_);                             // the last that did not come; invalid: none
  std::vector<std::shared_ptr<Copy>> copies_ TP_GUARDED_BY(mu_);  // that this process brought here
};

}  // namespace tidepool::workers
