#include "workers/data/host_weights.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;
// Without a new byte for so long a reader gives up.
constexpr std::chrono::seconds kStalled{30};

}  // namespace

struct HostWeights::Copy {
  Version version;
  uint64_t digest = 0;
  std::vector<std::byte> own;          // where shared memory has no room
  std::shared_ptr<const void> mapped;  // else
  std::span<std::byte> bytes;

  Mutex mu;
  Condition came;
  WeightPieces pieces TP_GUARDED_BY(mu);
  bool listed TP_GUARDED_BY(mu) = false;  // `pieces` is here
  int64_t here TP_GUARDED_BY(mu) = 0;     // bytes from the beginning on that are here and were checked
  bool over TP_GUARDED_BY(mu) = false;    // its memory is, or will be, something else

  void End() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    over = true;
    came.NotifyAll();
  }
  void Came(int64_t to) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    here = to;
    came.NotifyAll();
  }
  void List(WeightPieces list) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    pieces = std::move(list);
    listed = true;
    came.NotifyAll();
  }
  Status CopyTo(size_t at, std::span<std::byte> out) TP_EXCLUDES(mu) {
    const auto end = static_cast<int64_t>(at + out.size());
    {
      const MutexLock lock(mu);
      if (!came.WaitFor(mu, kStalled, [&]() TP_REQUIRES(mu) { return over || here >= end; }))
        return DeadlineExceeded("version " + ToString(version) + " does not come any further here");
    }
    std::ranges::copy(bytes.subspan(at, out.size()), out.begin());
    const MutexLock lock(mu);
    return over ? Unavailable("version " + ToString(version) + " is not here any more") : OkStatus();
  }
};

HostWeights::HostWeights(std::string folder) : block_(std::move(folder), "weights") {}
HostWeights::~HostWeights() { Forget(); }

StatusOr<std::shared_ptr<HostWeights::Copy>> HostWeights::Begin(const Version& version, uint64_t digest,
                                                                int64_t bytes, bool shared) {
  auto copy = std::make_shared<Copy>();
  copy->version = version;
  copy->digest = digest;
  const MutexLock lock(mu_);
  while (copies_.size() >= 2) {
    copies_.front()->End();
    copies_.erase(copies_.begin());
  }
  auto memory = block_.Begin({version.number, version.lineage, digest, bytes});
  if (shared) TP_RETURN_IF_ERROR(memory.status());
  if (memory.ok()) {
    copy->mapped = memory->owner;
    copy->bytes = memory->bytes;
  } else {
    copy->own.resize(static_cast<size_t>(bytes));
    copy->bytes = copy->own;
  }
  // Shared memory may have chosen the place of a copy that others still read.
  std::erase_if(copies_, [&](const std::shared_ptr<Copy>& c) {
    if (c->bytes.data() != copy->bytes.data()) return false;
    c->End();
    return true;
  });
  copies_.push_back(copy);
  begun_.NotifyAll();
  return copy;
}

Status HostWeights::Publish(const Version& version, uint64_t digest, const device::ByteSource& weights,
                            bool shared) {
  TP_ASSIGN_OR_RETURN(const auto copy, Begin(version, digest, static_cast<int64_t>(weights.size()), shared));
  weights.CopyTo(0, copy->bytes);
  copy->Came(static_cast<int64_t>(weights.size()));
  if (copy->mapped != nullptr) block_.Complete();
  return OkStatus();
}

StatusOr<uint64_t> HostWeights::Read(const Version& version, const device::ByteStore& out) const {
  TP_ASSIGN_OR_RETURN(const BlockTag tag, block_.Read(version.number, version.lineage, {out}));
  return tag.digest;
}

Status HostWeights::Pull(const std::string& address, const Credentials& credentials, const Version& version,
                         uint64_t digest, const device::ByteStore& out) {
  TP_ASSIGN_OR_RETURN(const auto copy,
                      Begin(version, digest, static_cast<int64_t>(out.size()), /*shared=*/false));
  const auto pull = [&]() -> Status {
    WeightPieces pieces;
    size_t piece = 0;
    const auto head = [&](uint64_t, WeightPieces list) -> Status {
      if (!list.sound() || list.total != static_cast<int64_t>(out.size()) || list.Digest() != digest)
        return DataLoss("the list of its pieces is not that of the published digest");
      pieces = std::move(list);
      copy->List(pieces);
      return OkStatus();
    };
    const auto take = [&](int64_t at, std::span<const std::byte> bytes) -> Status {
      std::ranges::copy(bytes, copy->bytes.begin() + at);
      const int64_t end = at + static_cast<int64_t>(bytes.size());
      for (; piece < pieces.sums.size() && pieces.end(piece) <= end; ++piece) {
        const auto whole = copy->bytes.subspan(static_cast<size_t>(pieces.begin(piece)),
                                               static_cast<size_t>(pieces.end(piece) - pieces.begin(piece)));
        if (!pieces.Has(piece, whole))
          return DataLoss("piece " + std::to_string(piece) + " is not what the list says");
        copy->Came(pieces.end(piece));
        out.CopyFrom(static_cast<size_t>(pieces.begin(piece)), whole);
      }
      return OkStatus();
    };
    return Fetch(address, credentials, {.version = version, .step = {}}, static_cast<int64_t>(out.size()),
                 head, take);
  };
  const Status pulled = pull();
  if (!pulled.ok()) {
    copy->End();
    const MutexLock lock(mu_);
    std::erase(copies_, copy);
    return pulled;
  }
  if (copy->mapped != nullptr) block_.Complete();
  return OkStatus();
}

StatusOr<PublishedBytes> HostWeights::Open(const Version& version, milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  constexpr milliseconds kLook{50};  // for what another process of this host completes
  std::shared_ptr<Copy> copy;
  while (copy == nullptr) {
    {
      const MutexLock lock(mu_);
      for (const auto& c : copies_)
        if (c->version == version) copy = c;
      if (copy == nullptr && std::chrono::steady_clock::now() < deadline) begun_.WaitFor(mu_, kLook);
    }
    if (copy != nullptr) break;
    if (auto there = block_.Open(version.number, version.lineage); there.ok()) {
      PublishedBytes out{.owner = *there, .digest = (*there)->tag().digest};
      out.pieces = PiecesOf((*there)->bytes());
      out.copy = [there = *there](size_t at, std::span<std::byte> to) {
        std::ranges::copy(there->bytes().subspan(at, to.size()), to.begin());
        return there->same() ? OkStatus() : Unavailable("these weights were replaced while they were read");
      };
      return out;
    }
    if (std::chrono::steady_clock::now() >= deadline)
      return NotFound("version " + ToString(version) + " is not published here");
  }
  PublishedBytes out{.owner = copy, .digest = copy->digest};
  bool published = false;  // here, so nobody has listed its pieces
  {
    const MutexLock lock(copy->mu);
    published = !copy->listed && copy->here == static_cast<int64_t>(copy->bytes.size());
  }
  if (published) copy->List(PiecesOf(copy->bytes));
  const MutexLock lock(copy->mu);
  if (!copy->came.WaitFor(copy->mu, kStalled,
                          [&]() TP_REQUIRES(copy->mu) { return copy->listed || copy->over; }) ||
      copy->over)
    return Unavailable("version " + ToString(version) + " did not come here");
  out.pieces = copy->pieces;
  out.copy = [copy](size_t at, std::span<std::byte> to) { return copy->CopyTo(at, to); };
  return out;
}

void HostWeights::Forget() {
  const MutexLock lock(mu_);
  for (const auto& copy : copies_) copy->End();
  copies_.clear();
}

int64_t HostWeights::held_bytes() const {
  const MutexLock lock(mu_);
  int64_t sum = 0;
  for (const auto& copy : copies_) sum += static_cast<int64_t>(copy->own.size());
  return sum;
}

}  // namespace tidepool::workers
