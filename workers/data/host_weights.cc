#include "workers/data/host_weights.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/base/weight_changes.h"

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;
// Without a new byte for so long a reader gives up.
constexpr std::chrono::seconds kStalled{30};
constexpr size_t kCopies = 2;  // and one more where these are read

Status Torn(const Version& version) {
  return DataLoss("version " + ToString(version) +
                  " is not here as it was published; it is to be brought again");
}

}  // namespace

struct HostWeights::Copy {
  Version version;
  uint64_t digest = 0;
  std::vector<std::byte> own;                  // where shared memory has no room
  std::optional<SharedBlock::Filling> shared;  // else
  std::span<std::byte> bytes;

  Mutex mu;
  Condition came;
  WeightPieces pieces TP_GUARDED_BY(mu);
  bool listed TP_GUARDED_BY(mu) = false;  // `pieces` is here
  int64_t here TP_GUARDED_BY(mu) = 0;     // bytes from the beginning on that are here and were checked
  bool over TP_GUARDED_BY(mu) = false;    // its memory is, or will be, something else
  // Shown to those that read what changed since, who do not keep it from giving its place to others.
  struct Lent {
    Mutex mu;
    std::span<const std::byte> bytes TP_GUARDED_BY(mu);  // none: it is over
  };
  const std::shared_ptr<Lent> lent = std::make_shared<Lent>();

  void End() TP_EXCLUDES(mu) {
    {
      const MutexLock lock(mu);
      over = true;
      came.NotifyAll();
    }
    const MutexLock lock(lent->mu);
    lent->bytes = {};
  }
  void Came(int64_t to) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    here = to;
    came.NotifyAll();
  }
  // All of it is here.
  void Complete() TP_EXCLUDES(mu) {
    {
      const MutexLock lock(lent->mu);
      lent->bytes = bytes;
    }
    Came(static_cast<int64_t>(bytes.size()));
    if (shared) shared->Complete();
  }
  bool whole() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    return !over && here == static_cast<int64_t>(bytes.size());
  }
  bool WholeOf(int64_t size) TP_EXCLUDES(mu) { return static_cast<int64_t>(bytes.size()) == size && whole(); }
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

struct HostWeights::Held {
  std::shared_ptr<Copy> copy;
  std::shared_ptr<const void> memory;  // null: the copy's own
};

HostWeights::HostWeights(std::string folder, int64_t word_bytes)
    : word_bytes_(word_bytes), block_(std::move(folder), "weights") {}
HostWeights::~HostWeights() { Forget(); }

std::shared_ptr<const HostWeights::Held> HostWeights::Find(const Version& version) const {
  const auto it = std::ranges::find(copies_, version, [](const auto& copy) { return copy->version; });
  if (it == copies_.end()) return nullptr;
  Held held{*it, (*it)->shared ? (*it)->shared->Hold() : nullptr};
  if ((*it)->shared && held.memory == nullptr) return nullptr;  // another process has filled it
  return std::make_shared<const Held>(std::move(held));
}

HostWeights::Whole HostWeights::Newest(int64_t bytes, const Version& but) const {
  Whole newest;
  {
    const MutexLock lock(mu_);
    for (const auto& copy : copies_) {
      if (copy->version <= newest.version || copy->version == but || !copy->WholeOf(bytes)) continue;
      if (const auto held = Find(copy->version); held != nullptr && held->copy == copy)
        newest = {copy->version, copy->digest, copy->bytes, held};
    }
  }
  const auto of_host = block_.OpenNewest([&](const BlockTag& tag) {
    const Version version{tag.lineage, tag.number};
    return version > newest.version && version != but && tag.bytes == bytes;
  });
  if (!of_host.ok()) return newest;
  const BlockTag& tag = (*of_host)->tag();
  return {{tag.lineage, tag.number}, tag.digest, (*of_host)->bytes(), *of_host};
}

void HostWeights::Drop(const std::shared_ptr<Copy>& copy) {
  copy->End();
  const MutexLock lock(mu_);
  std::erase(copies_, copy);
  changed_.NotifyAll();
}

void HostWeights::MakeRoom(Use use) {
  std::shared_ptr<Copy> kept;  // the newest that is whole
  for (const auto& copy : copies_)
    if (use == Use::kPull && copy->whole()) kept = copy;
  const auto unread = [&](const std::shared_ptr<Copy>& copy) {
    return copy != kept && copy.use_count() == 1;
  };
  while (copies_.size() >= kCopies) {
    auto place = std::ranges::find_if(copies_, unread);
    if (place == copies_.end()) {
      if (copies_.size() <= kCopies) return;
      place = copies_.begin();
    }
    (*place)->End();
    copies_.erase(place);
  }
}

StatusOr<std::shared_ptr<HostWeights::Copy>> HostWeights::Begin(const Version& version, uint64_t digest,
                                                                int64_t bytes, bool shared, Use use) {
  auto copy = std::make_shared<Copy>();
  copy->version = version;
  copy->digest = digest;
  const MutexLock lock(mu_);
  std::erase_if(copies_, [&](const auto& old) {  // it is brought here again
    if (old->version != version) return false;
    old->End();
    return true;
  });
  MakeRoom(use);
  const auto begin = [&] {
    return block_.Begin({version.number, version.lineage, digest, bytes},
                        use == Use::kPull ? SharedBlock::Keep::kNewest : SharedBlock::Keep::kNothing);
  };
  auto memory = begin();
  // Others of this host copy what they need of both, which takes seconds.
  for (const auto deadline = std::chrono::steady_clock::now() + kStalled;
       shared && memory.status().code() == StatusCode::kUnavailable &&
       std::chrono::steady_clock::now() < deadline;
       memory = begin())
    changed_.WaitFor(mu_, milliseconds(10));
  if (shared) TP_RETURN_IF_ERROR(memory.status());
  if (memory.ok()) {
    copy->shared = *std::move(memory);
    copy->bytes = copy->shared->bytes();
    std::erase_if(copies_, [&](const auto& old) {  // its memory nobody read
      if (old->bytes.data() != copy->bytes.data()) return false;
      old->End();
      return true;
    });
  } else {
    copy->own.resize(static_cast<size_t>(bytes));
    copy->bytes = copy->own;
  }
  copies_.push_back(copy);
  if (failed_ == version) failed_ = {};
  changed_.NotifyAll();
  return copy;
}

Status HostWeights::Publish(const Version& version, uint64_t digest, const device::ByteSource& weights,
                            bool shared) {
  {
    const MutexLock lock(mu_);
    if (const auto there = Find(version);
        there != nullptr && there->copy->digest == digest && there->copy->whole())
      return OkStatus();  // another controller asks again
  }
  TP_ASSIGN_OR_RETURN(const auto copy,
                      Begin(version, digest, static_cast<int64_t>(weights.size()), shared, Use::kPublish));
  weights.CopyTo(0, copy->bytes);
  copy->Complete();
  return OkStatus();
}

StatusOr<uint64_t> HostWeights::Read(const Version& version, const device::ByteStore& out) const {
  std::shared_ptr<const Held> held;
  {
    const MutexLock lock(mu_);
    held = Find(version);
  }
  if (held != nullptr && held->copy->whole() && held->copy->bytes.size() == out.size()) {
    out.CopyFrom(0, held->copy->bytes);
    return held->copy->digest;
  }
  TP_ASSIGN_OR_RETURN(const BlockTag tag, block_.Read(version.number, version.lineage, {out}));
  return tag.digest;
}

StatusOr<HostWeights::Whole> HostWeights::Look(const Version& version) const {
  {
    const MutexLock lock(mu_);
    if (const auto held = Find(version); held != nullptr && held->copy->whole())
      return Whole{version, held->copy->digest, held->copy->bytes, held};
  }
  TP_ASSIGN_OR_RETURN(const auto there, block_.Open(version.number, version.lineage));
  return Whole{version, there->tag().digest, there->bytes(), there};
}

Status HostWeights::Pull(const Source& from, const Version& version, uint64_t digest, int64_t bytes,
                         const std::function<void(int64_t)>& came, const std::stop_token& stop) {
  // Another worker of this host may have brought it here.
  if (const auto there = block_.Open(version.number, version.lineage);
      there.ok() && (*there)->tag().digest == digest && (*there)->tag().bytes == bytes)
    return OkStatus();
  Whole base = Newest(bytes, version);
  TP_ASSIGN_OR_RETURN(const auto copy, Begin(version, digest, bytes, /*shared=*/false, Use::kPull));
  WeightPieces pieces;
  size_t piece = 0;
  const auto head = [&](uint64_t, WeightPieces list) -> Status {
    if (!list.sound() || list.total != bytes || list.Digest() != digest)
      return DataLoss("the list of its pieces is not that of the published digest");
    pieces = std::move(list);
    copy->List(pieces);
    return OkStatus();
  };
  const auto take = [&](const FetchedBytes& part) -> Status {
    const auto at = static_cast<size_t>(part.at), size = static_cast<size_t>(part.size);
    const auto to = copy->bytes.subspan(at, size);
    came(static_cast<int64_t>(part.data.size()));
    if (!part.changes)
      std::ranges::copy(part.data, to.begin());
    else if (!ApplyChanges(part.data, base.bytes.subspan(at, size), word_bytes_, to))
      return DataLoss("these are no changes of weights");
    const int64_t end = part.at + part.size;
    for (; piece < pieces.sums.size() && pieces.end(piece) <= end; ++piece) {
      const auto whole = copy->bytes.subspan(static_cast<size_t>(pieces.begin(piece)),
                                             static_cast<size_t>(pieces.end(piece) - pieces.begin(piece)));
      if (!pieces.Has(piece, whole))
        return DataLoss("piece " + std::to_string(piece) + " is not what the list says");
      copy->Came(pieces.end(piece));
    }
    return OkStatus();
  };
  const auto fetch = [&] {
    WantedBytes wanted{.version = version, .step = {}};
    if (piece < pieces.sums.size()) wanted.from = pieces.begin(piece);
    if (base.memory != nullptr) wanted.base = {base.version, base.digest, word_bytes_};
    return Fetch(connection_, from.address, from.credentials, wanted, bytes, head, take, stop);
  };
  Status pulled = fetch();
  if (pulled.code() == StatusCode::kDataLoss && base.memory != nullptr) {
    // One of the two bases may not be what its digest says. The rest comes as it is.
    const Version version_of_base = base.version;
    base = {};
    LookAgain(version_of_base);
    pulled = fetch();
  }
  if (pulled.ok()) {
    copy->Complete();
    return OkStatus();
  }
  {
    const MutexLock lock(mu_);
    failed_ = version;
  }
  Drop(copy);
  return pulled;
}

StatusOr<PublishedBytes> HostWeights::Open(const Version& version, const WeightsBase& base) {
  TP_ASSIGN_OR_RETURN(PublishedBytes out, OpenVersion(version));
  if (base.word_bytes > 0) LendBase(base, out);
  return out;
}

void HostWeights::LendBase(const WeightsBase& base, PublishedBytes& out) const {
  {
    const MutexLock lock(mu_);
    for (const auto& copy : copies_) {
      if (copy->version != base.version || copy->digest != base.digest || !copy->WholeOf(out.pieces.total) ||
          Find(copy->version) == nullptr)
        continue;
      out.base = [lent = copy->lent](size_t at, size_t size, const PublishedBytes::Reader& reader) {
        const MutexLock reads(lent->mu);
        if (lent->bytes.empty()) return false;
        reader(lent->bytes.subspan(at, size));
        return true;
      };
      return;
    }
  }
  // In shared memory it is opened anew for each piece: who held it would keep the next publication from its
  // place.
  const auto open = [base, total = out.pieces.total](const HostWeights& of) {
    return of.block_.OpenNewest([&](const BlockTag& tag) {
      return Version{tag.lineage, tag.number} == base.version && tag.digest == base.digest &&
             tag.bytes == total;
    });
  };
  if (open(*this).ok())
    out.base = [open, weak = weak_from_this()](size_t at, size_t size, const PublishedBytes::Reader& reader) {
      const auto of = weak.lock();
      if (of == nullptr) return false;
      const auto view = open(*of);
      if (!view.ok()) return false;
      reader((*view)->bytes().subspan(at, size));
      return true;
    };
}

StatusOr<PublishedBytes> HostWeights::OpenVersion(const Version& version) {
  const auto deadline = std::chrono::steady_clock::now() + kStalled;
  constexpr milliseconds kLook{50};  // for what another process of this host completes
  std::shared_ptr<const Held> held;
  for (bool comes = true;;) {
    {
      const MutexLock lock(mu_);
      held = Find(version);
    }
    if (held != nullptr) break;
    if (auto there = block_.Open(version.number, version.lineage); there.ok()) {
      PublishedBytes out{.owner = *there, .digest = (*there)->tag().digest};
      out.pieces = PiecesOf((*there)->bytes());
      if (out.pieces.Digest() != out.digest) {
        block_.Reject((*there)->tag());
        return Torn(version);
      }
      out.copy = [there = *there](size_t at, std::span<std::byte> to) {
        std::ranges::copy(there->bytes().subspan(at, to.size()), to.begin());
        return OkStatus();
      };
      return out;
    }
    if (!comes || std::chrono::steady_clock::now() >= deadline)
      return NotFound("version " + ToString(version) + " is not published here");
    const MutexLock lock(mu_);
    comes = failed_ != version &&
            std::ranges::none_of(copies_, [&](const auto& c) { return c->version > version; });
    if (comes) changed_.WaitFor(mu_, kLook);
  }
  const auto& copy = held->copy;
  PublishedBytes out{.owner = held, .digest = copy->digest};
  bool published = false;  // here, so nobody has listed its pieces
  {
    const MutexLock lock(copy->mu);
    published = !copy->listed && copy->here == static_cast<int64_t>(copy->bytes.size());
  }
  if (published) {
    WeightPieces pieces = PiecesOf(copy->bytes);
    if (pieces.Digest() != copy->digest) {
      if (copy->shared) block_.Reject(copy->shared->tag());
      Drop(copy);
      return Torn(version);
    }
    copy->List(std::move(pieces));
  }
  const MutexLock lock(copy->mu);
  if (!copy->came.WaitFor(copy->mu, kStalled,
                          [&]() TP_REQUIRES(copy->mu) { return copy->listed || copy->over; }) ||
      copy->over)
    return Unavailable("version " + ToString(version) + " did not come here");
  out.pieces = copy->pieces;
  out.copy = [held](size_t at, std::span<std::byte> to) { return held->copy->CopyTo(at, to); };
  return out;
}

void HostWeights::LookAgain(const Version& version) {
  std::shared_ptr<const Held> held;
  {
    const MutexLock lock(mu_);
    held = Find(version);
  }
  if (held != nullptr && held->copy->whole() && PiecesOf(held->copy->bytes).Digest() != held->copy->digest)
    Drop(held->copy);
  if (const auto there = block_.Open(version.number, version.lineage);
      there.ok() && PiecesOf((*there)->bytes()).Digest() != (*there)->tag().digest)
    block_.Reject((*there)->tag());
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
