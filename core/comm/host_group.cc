#include "core/comm/host_group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/exchange.h"

namespace tidepool::comm {
namespace {

using sharding::Interval;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;
constexpr int64_t kLine = 64;

}  // namespace

struct alignas(64) HostMemory::Rank {
  std::atomic<uint32_t> round;     // that it has said; what it says of a round is at said[round % 2]
  std::atomic<uint32_t> sleepers;  // that wait for it
  std::atomic<uint32_t> written;   // of what it shows, in kUnits from the begin of its interval; or kAll
  std::atomic<uint32_t> gave_up;   // 1: from now on its own memory may have anything
  struct Said {
    uint64_t bytes;  // of the operation: equal on all ranks, or what this one brings
    char what[112];  // "op=all_reduce tag=gradients"
  } said[2];
};

namespace {

int64_t DataAt(int ranks) {
  const auto said = static_cast<int64_t>(sizeof(HostMemory::Rank)) * ranks;
  return (said + kPage - 1) / kPage * kPage;
}

Status Unusable(const std::string& path, const char* what) {
  return Unavailable(path + ": " + what + " (" + std::strerror(errno) + ")");
}

}  // namespace

// Small enough to stay in a processor's cache between who writes and who reads.
int64_t HostMemory::OutboxBytes(int ranks) {
  constexpr int64_t kMost = int64_t{1} << 20;
  return std::max(kMost / ranks / kLine, int64_t{256}) * kLine * ranks;
}
int64_t HostMemory::Bytes(int ranks) { return DataAt(ranks) + 2 * ranks * OutboxBytes(ranks); }

HostMemory::Rank& HostMemory::of(int rank) const { return reinterpret_cast<Rank*>(base_)[rank]; }
std::byte* HostMemory::outbox(int rank, uint32_t round) const {
  return base_ + DataAt(ranks_) + (2 * rank + static_cast<int64_t>(round % 2)) * OutboxBytes(ranks_);
}

StatusOr<std::unique_ptr<HostMemory>> HostMemory::Map(HostFile file, int rank, int ranks) {
  std::unique_ptr<HostMemory> memory(new HostMemory(std::move(file), ranks));
  const HostFile& mapped = memory->file_;
  void* base =
      mmap(nullptr, static_cast<size_t>(Bytes(ranks)), PROT_READ | PROT_WRITE, MAP_SHARED, mapped.fd(), 0);
  if (base == MAP_FAILED) return Unusable(mapped.path(), "cannot be mapped");
  memory->base_ = static_cast<std::byte*>(base);
  // Of the open file, not of the process: ranks may be threads.
  struct flock mine {};
  mine.l_type = F_WRLCK;
  mine.l_whence = SEEK_SET;
  mine.l_start = rank;
  mine.l_len = 1;
  if (fcntl(mapped.fd(), F_OFD_SETLK, &mine) != 0) return Unusable(mapped.path(), "cannot be locked");
  return memory;
}

StatusOr<std::unique_ptr<HostMemory>> HostMemory::Make(const std::string& folder, int ranks,
                                                       std::string& name) {
  TP_ASSIGN_OR_RETURN(HostFile file, HostFile::Make(folder, Bytes(ranks)));
  name = file.name();
  TP_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, Map(std::move(file), /*rank=*/0, ranks));
  return memory;
}

StatusOr<std::unique_ptr<HostMemory>> HostMemory::Open(const std::string& folder, const std::string& name,
                                                       int rank, int ranks) {
  TP_ASSIGN_OR_RETURN(HostFile file, HostFile::Open(folder, name, Bytes(ranks)));
  return Map(std::move(file), rank, ranks);
}

HostMemory::~HostMemory() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(Bytes(ranks_)));
}

bool HostMemory::Here(int rank) const {
  struct flock theirs {};
  theirs.l_type = F_WRLCK;
  theirs.l_whence = SEEK_SET;
  theirs.l_start = rank;
  theirs.l_len = 1;
  return fcntl(file_.fd(), F_OFD_GETLK, &theirs) != 0 || theirs.l_type != F_UNLCK;
}

namespace {

// A rank that has as much to do as this one is there in a moment.
constexpr int kLooks = 200;
// Between two looks whether those that are waited for still live.
constexpr std::chrono::milliseconds kLook{50};

void Sleep(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit) {
  if (limit.count() <= 0) return;
  const timespec time{.tv_sec = limit.count() / 1'000'000'000, .tv_nsec = limit.count() % 1'000'000'000};
  // Not of this process alone.
  (void)syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}
void WakeAll(const std::atomic<uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Where a rank has what the others may take, and how they know that it is that rank: `mark` of its own memory
// has `value`. Processes of several containers may have one number.
using Mark = std::array<uint64_t, 2>;
struct Shown {
  pid_t pid;  // 0: it shows nothing
  uint64_t bytes, mark;
  Mark value;
};

// Bytes of all ranks from which on one copy is quicker than a way through an outbox, which stays in the
// cache.
constexpr int64_t kOneCopyFrom = int64_t{64} << 10;

// Of an interval that is being written.
constexpr int64_t kUnit = 4096;
constexpr uint32_t kAll = UINT32_MAX;

// What a process has from an address on. False: the kernel does not let this one, or there is nothing.
bool ReadOf(pid_t pid, uint64_t from, std::span<std::byte> to) {
  constexpr size_t kMost = size_t{16} << 20;  // no signal is heard meanwhile
  while (!to.empty()) {
    const size_t piece = std::min(kMost, to.size());
    const iovec here{.iov_base = to.data(), .iov_len = piece},
        there{.iov_base = reinterpret_cast<void*>(from), .iov_len = piece};
    const ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n <= 0) return false;
    to = to.subspan(static_cast<size_t>(n));
    from += static_cast<uint64_t>(n);
  }
  return true;
}

int64_t Length(std::span<const Interval> of_rank) {
  int64_t sum = 0;
  for (const Interval& i : of_rank) sum += i.size();
  return sum;
}

class HostGroup final : public Collective {
 public:
  HostGroup(const GroupOptions& options, std::unique_ptr<HostMemory> memory)
      : rank_(options.rank),
        size_(options.size),
        timeout_s_(options.timeout_s),
        outbox_bytes_(HostMemory::OutboxBytes(options.size)),
        memory_(std::move(memory)) {
    marked_ = getrandom(mark_.data(), sizeof mark_, 0) == sizeof mark_;
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Status AllReduceSum(std::span<float> values, const std::string& tag) override {
    return Reduce(values, tag);
  }
  Status AllReduceSum(std::span<double> values, const std::string& tag) override {
    return Reduce(values, tag);
  }
  Status AllReduceSum(std::span<uint16_t> bfloat16, const std::string& tag) override {
    return Reduce(bfloat16, tag);
  }

  Status AllReduceTree(const Tree& tree, std::span<float> sum, const std::string& tag) override {
    return ReduceTree(tree, sum, tag);
  }
  Status AllReduceTree(const Tree& tree, std::span<uint16_t> bfloat16, const std::string& tag) override {
    return ReduceTree(tree, bfloat16, tag);
  }

  StatusOr<std::vector<uint64_t>> AllGather(uint64_t mine, const std::string& tag) override {
    TP_RETURN_IF_ERROR(Begin("all_gather", tag));
    return Numbers(mine);
  }

  StatusOr<std::vector<std::string>> AllGather(const std::string& mine, const std::string& tag,
                                               double patience_s) override {
    TP_RETURN_IF_ERROR(Begin("all_gather", tag));
    if (patience_s > 0) patience_s_ = patience_s;
    TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes, Numbers(mine.size()));
    patience_s_ = timeout_s_;  // all are here
    std::vector<std::string> all;
    for (const uint64_t size : sizes) all.emplace_back(size, '\0');
    all[static_cast<size_t>(rank_)] = mine;
    const auto most = static_cast<int64_t>(*std::ranges::max_element(sizes));
    const auto piece = [&](std::string& s, int64_t at) {
      const auto from = static_cast<size_t>(std::min<int64_t>(at, static_cast<int64_t>(s.size())));
      return std::as_writable_bytes(std::span(s))
          .subspan(from, std::min(static_cast<size_t>(outbox_bytes_), s.size() - from));
    };
    for (int64_t at = 0; at < most; at += outbox_bytes_) {
      const auto out = piece(all[static_cast<size_t>(rank_)], at);
      std::copy(out.begin(), out.end(), Outbox<std::byte>());
      TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(most)));
      for (int other = 0; other < size_; ++other) {
        if (other == rank_) continue;
        const auto into = piece(all[static_cast<size_t>(other)], at);
        std::copy_n(From<std::byte>(other), into.size(), into.begin());
      }
    }
    return all;
  }

  StatusOr<bool> Begun(int by, std::chrono::milliseconds patience) override {
    TP_RETURN_IF_ERROR(failed_);
    HostMemory::Rank& they = memory_->of(by);
    const auto begun = [&](uint32_t round) { return static_cast<int32_t>(round - round_) > 0; };
    const auto until = Clock::now() + patience;
    for (int i = 0; i < kLooks; ++i) {
      if (begun(they.round.load())) return true;
      std::this_thread::yield();
    }
    while (true) {
      they.sleepers.fetch_add(1);
      const uint32_t round = they.round.load();
      if (!begun(round))
        Sleep(they.round, round, std::min<std::chrono::nanoseconds>(kLook, until - Clock::now()));
      they.sleepers.fetch_sub(1);
      if (begun(they.round.load())) return true;
      if (!memory_->Here(by) && !begun(they.round.load())) {
        failed_ = Unavailable("rank " + std::to_string(by) + " has left the group, or its process ended");
        return failed_;
      }
      if (Clock::now() >= until) return false;
    }
  }

  Status ReduceScatterSum(const Scatter& s, const std::string& tag) override {
    TP_RETURN_IF_ERROR(Begin("reduce_scatter", tag));
    return ScatterSum(s.values, s.has, s.of_rank, s.into);
  }

  Status AllGather(std::span<std::byte> bytes, std::span<const Interval> of_rank,
                   const std::string& tag) override {
    TP_RETURN_IF_ERROR(Begin("all_gather", tag));
    TP_RETURN_IF_ERROR(Share(bytes, of_rank));
    Count(tag, of_rank, began_);
    return OkStatus();
  }

  Status AllGatherWritten(std::span<std::byte> bytes, std::span<const Interval> of_rank,
                          const std::function<bool(const Wrote&)>& write, const std::string& tag) override {
    TP_RETURN_IF_ERROR(Begin("all_gather", tag));
    const bool shows = CopiesOnce(of_rank);
    if (shows) TP_RETURN_IF_ERROR(Show(bytes, of_rank));
    const int64_t from = of_rank[static_cast<size_t>(rank_)].from;
    if (!write([&](int64_t to) {
          if (shows) ShowWritten(static_cast<uint32_t>((to - from) / kUnit));
        })) {
      sources_.clear();
      return OkStatus();
    }
    const auto since = Clock::now();
    if (shows) {
      ShowWritten(kAll);
      TP_RETURN_IF_ERROR(Take(bytes, of_rank));
    }
    if (!shows || !one_copy_) TP_RETURN_IF_ERROR(ShareByOutboxes(bytes, of_rank));
    Count(tag, of_rank, since);
    return OkStatus();
  }

  // In the first round each says how much it has for whom; then an outbox has a part for each rank.
  Status AllToAll(const Exchange& e, const std::string& tag) override {
    TP_RETURN_IF_ERROR(Begin("all_to_all", tag));
    const auto ranks = static_cast<size_t>(size_), me = static_cast<size_t>(rank_);
    for (size_t other = 0; other < ranks; ++other)
      Outbox<uint64_t>()[other] = static_cast<uint64_t>(e.to[other].size());
    TP_RETURN_IF_ERROR(Meet(sizeof(uint64_t) * ranks));
    std::vector<uint64_t> sizes;  // [from][to]
    for (int other = 0; other < size_; ++other)
      sizes.insert(sizes.end(), From<uint64_t>(other), From<uint64_t>(other) + ranks);
    failed_ = CheckSizes(sizes, e.from, rank_, tag);
    TP_RETURN_IF_ERROR(failed_);
    std::copy_n(e.out.data() + e.to[me].from, e.to[me].size(), e.in.data() + e.from[me].from);
    uint64_t most = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (i / ranks != i % ranks) most = std::max(most, sizes[i]);
    const int64_t part = outbox_bytes_ / size_;
    for (int64_t b = 0; b * part < static_cast<int64_t>(most); ++b) {
      for (int other = 0; other < size_; ++other) {
        if (other == rank_) continue;
        const Interval i = Bucket(e.to[static_cast<size_t>(other)], b, part);
        std::copy_n(e.out.data() + i.from, i.size(), Outbox<std::byte>() + other * part);
      }
      TP_RETURN_IF_ERROR(Meet(most));
      for (int other = 0; other < size_; ++other) {
        if (other == rank_) continue;
        const Interval i = Bucket(e.from[static_cast<size_t>(other)], b, part);
        std::copy_n(From<std::byte>(other) + rank_ * part, i.size(), e.in.data() + i.from);
      }
    }
    return OkStatus();
  }

 private:
  // Of the next round.
  template <typename T>
  [[nodiscard]] T* Outbox() {
    return reinterpret_cast<T*>(memory_->outbox(rank_, round_ + 1));
  }
  // Of the round of the last Meet().
  template <typename T>
  [[nodiscard]] const T* From(int other) const {
    return reinterpret_cast<const T*>(memory_->outbox(other, round_));
  }

  // After an error an outbox may be read still, so nothing is filled any more.
  Status Begin(const char* op, const std::string& tag) {
    TP_RETURN_IF_ERROR(failed_);
    ++seq_;
    what_ = std::string("op=") + op + " tag=" + tag;
    began_ = Clock::now();
    patience_s_ = timeout_s_;
    return OkStatus();
  }

  // Of little, or by two ranks, everybody sums everything. Else each sums its share, and all get it: the bits
  // are the same.
  template <typename T>
  Status Reduce(std::span<T> values, const std::string& tag) {
    TP_RETURN_IF_ERROR(Begin("all_reduce", tag));
    const auto most = static_cast<size_t>(outbox_bytes_) / sizeof(T);
    if (values.size() > most && size_ > 2) {
      std::vector<Interval> of_rank = sharding::OwnedByAll(static_cast<int64_t>(values.size()), size_);
      const Interval& own = of_rank[static_cast<size_t>(rank_)];
      TP_RETURN_IF_ERROR(
          ScatterSum<T>(values, {}, of_rank,
                        values.subspan(static_cast<size_t>(own.from), static_cast<size_t>(own.size()))));
      for (Interval& i : of_rank) i = {i.from * int64_t{sizeof(T)}, i.to * int64_t{sizeof(T)}};
      return Share(std::as_writable_bytes(values), of_rank);
    }
    for (size_t at = 0; at < values.size(); at += most) {
      const std::span<T> piece = values.subspan(at, std::min(most, values.size() - at));
      std::copy(piece.begin(), piece.end(), Outbox<T>());
      TP_RETURN_IF_ERROR(Meet(values.size_bytes()));
      SumInOrder(piece, size_,
                 [&](int other) -> const T* { return other == rank_ ? piece.data() : From<T>(other); });
    }
    return OkStatus();
  }

  // The same choice as in Reduce. A rank's nodes stand behind each other in its outbox.
  template <typename T>
  Status ReduceTree(const Tree& tree, std::span<T> sum, const std::string& tag) {
    const AllNodes all(tree.nodes);
    TP_RETURN_IF_ERROR(Begin(("all_reduce_tree of " + std::to_string(all.nodes.size()) + " sums to " +
                              std::to_string(sizeof(T)) + " bytes")
                                 .c_str(),
                             tag));
    const auto n = static_cast<int64_t>(sum.size()), most = all.most;
    const auto own_nodes = static_cast<int64_t>(tree.nodes[static_cast<size_t>(rank_)].size());
    const int64_t piece = outbox_bytes_ / static_cast<int64_t>(sizeof(float)) / most;
    if (n > piece && size_ > 2) {
      const int64_t part = piece / size_;
      const std::vector<Interval> of_rank = sharding::OwnedByAll(n, size_);
      const int64_t buckets = Buckets(of_rank, part);
      for (int64_t b = 0; b < buckets; ++b) {
        for (int other = 0; other < size_; ++other) {
          if (other == rank_) continue;
          const Interval i = Bucket(of_rank[static_cast<size_t>(other)], b, part);
          for (int64_t node = 0; node < own_nodes; ++node)
            std::copy_n(tree.mine.data() + node * n + i.from, i.size(),
                        Outbox<float>() + (other * most + node) * part);
        }
        TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(n)));
        const Interval i = Bucket(of_rank[static_cast<size_t>(rank_)], b, part);
        SumTree(sum.subspan(static_cast<size_t>(i.from), static_cast<size_t>(i.size())), all,
                [&](int rank, int64_t node) -> const float* {
                  return rank == rank_ ? tree.mine.data() + node * n + i.from
                                       : From<float>(rank) + (rank_ * most + node) * part;
                });
      }
      std::vector<Interval> bytes;
      for (const Interval& i : of_rank)
        bytes.push_back({i.from * int64_t{sizeof(T)}, i.to * int64_t{sizeof(T)}});
      return Share(std::as_writable_bytes(sum), bytes);
    }
    for (int64_t at = 0; at < n; at += piece) {
      const int64_t size = std::min(piece, n - at);
      for (int64_t node = 0; node < own_nodes; ++node)
        std::copy_n(tree.mine.data() + node * n + at, size, Outbox<float>() + node * piece);
      TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(n)));
      SumTree(sum.subspan(static_cast<size_t>(at), static_cast<size_t>(size)), all,
              [&](int rank, int64_t node) -> const float* {
                return rank == rank_ ? tree.mine.data() + node * n + at : From<float>(rank) + node * piece;
              });
    }
    return OkStatus();
  }

  // An outbox has a part for each rank.
  template <typename T>
  Status ScatterSum(std::span<const T> values, std::span<const uint8_t> has,
                    std::span<const Interval> of_rank, std::span<T> into) {
    const int64_t part = outbox_bytes_ / size_ / static_cast<int64_t>(sizeof(T));
    const Interval& own = of_rank[static_cast<size_t>(rank_)];
    const int64_t buckets = Buckets(of_rank, part);
    for (int64_t b = 0; b < buckets; ++b) {
      for (int other = 0; other < size_; ++other) {
        if (other == rank_ || !Has(has, rank_)) continue;
        const Interval i = Bucket(of_rank[static_cast<size_t>(other)], b, part);
        std::copy_n(values.data() + i.from, i.size(), Outbox<T>() + other * part);
      }
      TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(Length(of_rank))));
      const Interval i = Bucket(own, b, part);
      SumInOrder(into.subspan(static_cast<size_t>(i.from - own.from), static_cast<size_t>(i.size())), size_,
                 [&](int other) -> const T* {
                   if (!Has(has, other)) return nullptr;
                   return other == rank_ ? values.data() + i.from : From<T>(other) + rank_ * part;
                 });
    }
    return OkStatus();
  }

  Status Share(std::span<std::byte> bytes, std::span<const Interval> of_rank) {
    if (CopiesOnce(of_rank)) {
      TP_RETURN_IF_ERROR(Show(bytes, of_rank));
      ShowWritten(kAll);
      TP_RETURN_IF_ERROR(Take(bytes, of_rank));
      if (one_copy_) return OkStatus();
    }
    return ShareByOutboxes(bytes, of_rank);
  }

  // Much is copied once, from where one rank has it to where another one wants it, as far as the kernel lets
  // them.
  [[nodiscard]] bool CopiesOnce(std::span<const Interval> of_rank) const {
    return one_copy_ && Length(of_rank) >= kOneCopyFrom;
  }

  // Tells where this rank's bytes are, of which nothing is written yet, and hears where the others' are.
  Status Show(std::span<std::byte> bytes, std::span<const Interval> of_rank) {
    *Outbox<Shown>() = {.pid = marked_ ? getpid() : 0,
                        .bytes = reinterpret_cast<uint64_t>(bytes.data()),
                        .mark = reinterpret_cast<uint64_t>(&mark_),
                        .value = mark_};
    memory_->of(rank_).written.store(0);  // all have taken what was shown before
    TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(Length(of_rank))));
    sources_.clear();
    can_take_ = true;
    for (int i = 1; i < size_; ++i) {  // not all from the same one first
      const int other = (rank_ + i) % size_;
      const Shown shown = *From<Shown>(other);
      Mark mark{};
      can_take_ = can_take_ && shown.pid != 0 &&
                  ReadOf(shown.pid, shown.mark, std::as_writable_bytes(std::span(mark))) &&
                  mark == shown.value;
      sources_.push_back({other, shown, of_rank[static_cast<size_t>(other)], 0});
    }
    return OkStatus();
  }
  void ShowWritten(uint32_t units) {
    HostMemory::Rank& me = memory_->of(rank_);
    me.written.store(units);
    if (me.sleepers.load() > 0) WakeAll(me.written);
  }

  // The others' intervals, as they are written. Nobody writes there again before all have said how it went.
  // Not `one_copy_` any more, on all of them: for one it went wrong.
  Status Take(std::span<std::byte> bytes, std::span<const Interval> of_rank) {
    const auto until = Until();
    for (Source& source : sources_) {
      while (can_take_ && source.left.size() > 0) {
        if (TakeReady(bytes)) continue;
        const uint32_t had = source.units;
        failed_ = Await(
            source.rank, memory_->of(source.rank).written, [had](uint32_t units) { return units != had; },
            until);
        if (!failed_.ok()) return GiveUp();
      }
    }
    sources_.clear();
    TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, Numbers(can_take_ ? 1 : 0));
    for (int other = 0; other < size_; ++other) {
      if (memory_->of(other).gave_up.load() == 0) continue;
      failed_ = Unavailable(Failed() + ": rank " + std::to_string(other) + " has given up meanwhile");
      return GiveUp();
    }
    one_copy_ = std::ranges::find(all, 0U) == all.end();
    return OkStatus();
  }
  // What is there by now. Whether something was.
  bool TakeReady(std::span<std::byte> bytes) {
    bool some = false;
    for (Source& source : sources_) {
      const uint32_t units = memory_->of(source.rank).written.load(), more = units - source.units;
      if (more == 0 || source.left.size() == 0) continue;
      const int64_t n =
          units == kAll ? source.left.size() : std::min(source.left.size(), int64_t{more} * kUnit);
      can_take_ =
          can_take_ && ReadOf(source.shown.pid, source.shown.bytes + static_cast<uint64_t>(source.left.from),
                              bytes.subspan(static_cast<size_t>(source.left.from), static_cast<size_t>(n)));
      source.left.from += n;
      source.units = units;
      some = true;
    }
    return some;
  }

  Status ShareByOutboxes(std::span<std::byte> bytes, std::span<const Interval> of_rank) {
    const int64_t buckets = Buckets(of_rank, outbox_bytes_);
    const auto bucket = [&](int rank, int64_t b) {
      return Bucket(of_rank[static_cast<size_t>(rank)], b, outbox_bytes_);
    };
    for (int64_t b = 0; b < buckets; ++b) {
      const Interval own = bucket(rank_, b);
      std::copy_n(bytes.data() + own.from, own.size(), Outbox<std::byte>());
      TP_RETURN_IF_ERROR(Meet(static_cast<uint64_t>(Length(of_rank))));
      for (int other = 0; other < size_; ++other) {
        if (other == rank_) continue;
        const Interval i = bucket(other, b);
        std::copy_n(From<std::byte>(other), i.size(), bytes.data() + i.from);
      }
    }
    return OkStatus();
  }

  StatusOr<std::vector<uint64_t>> Numbers(uint64_t mine) {
    *Outbox<uint64_t>() = mine;
    TP_RETURN_IF_ERROR(Meet(sizeof(uint64_t)));
    std::vector<uint64_t> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(*From<uint64_t>(rank));
    return all;
  }

  // Says that this rank's outbox is filled, and waits for the others'. `bytes`: equal on all ranks.
  Status Meet(uint64_t bytes) {
    failed_ = TryToMeet(bytes);
    return failed_.ok() ? OkStatus() : GiveUp();
  }
  // Before this rank goes on, and what it has changes.
  Status GiveUp() {
    memory_->of(rank_).gave_up.store(1);
    return failed_;
  }
  [[nodiscard]] Clock::time_point Until() const {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_s_));
  }

  Status TryToMeet(uint64_t bytes) {
    HostMemory::Rank& me = memory_->of(rank_);
    HostMemory::Rank::Said& said = me.said[++round_ % 2];
    said.bytes = bytes;
    const std::string what = std::to_string(seq_) + " " + what_;
    said.what[what.copy(said.what, sizeof said.what - 1)] = '\0';
    me.round.store(round_);
    if (me.sleepers.load() > 0) WakeAll(me.round);
    const auto until = Until();
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      TP_RETURN_IF_ERROR(Await(
          other, memory_->of(other).round, [this](uint32_t round) { return Reached(round); }, until));
    }
    for (int other = 0; other < size_; ++other) {
      const HostMemory::Rank::Said& theirs = memory_->of(other).said[round_ % 2];
      if (std::strcmp(theirs.what, said.what) == 0 && theirs.bytes == bytes) continue;
      return Internal(Failed() + ": rank " + std::to_string(other) + " is at seq=" + theirs.what + " with " +
                      std::to_string(theirs.bytes) + " bytes, this one has " + std::to_string(bytes));
    }
    return OkStatus();
  }

  [[nodiscard]] bool Reached(uint32_t round) const { return static_cast<int32_t>(round - round_) >= 0; }
  [[nodiscard]] bool Said(int other) const { return Reached(memory_->of(other).round.load()); }

  // Until a word of another rank is as awaited.
  template <typename There>
  Status Await(int other, const std::atomic<uint32_t>& word, There there, Clock::time_point until) {
    HostMemory::Rank& they = memory_->of(other);
    for (int i = 0; i < kLooks; ++i) {
      if (there(word.load())) return OkStatus();
      std::this_thread::yield();
    }
    while (true) {
      they.sleepers.fetch_add(1);
      const uint32_t value = word.load();
      if (!there(value)) Sleep(word, value, kLook);
      they.sleepers.fetch_sub(1);
      if (there(word.load())) return OkStatus();
      // Any of them: a rank that is gone is not waited for behind a slow one.
      for (int gone = 0; gone < size_; ++gone) {
        if (gone == rank_ || (gone != other && Said(gone)) || memory_->Here(gone)) continue;
        if (gone == other ? there(word.load()) : Said(gone)) continue;
        return Unavailable(Failed() + Missing() + ": rank " + std::to_string(gone) +
                           " has left the group, or its process ended");
      }
      if (Clock::now() >= until) return DeadlineExceeded(Failed() + Missing() + Last());
    }
  }

  [[nodiscard]] std::string Failed() const {
    const double s = std::chrono::duration<double>(Clock::now() - began_).count();
    return "collective " + what_ + " seq=" + std::to_string(seq_) + " rank=" + std::to_string(rank_) + "/" +
           std::to_string(size_) + " failed after " + std::to_string(s) + " s";
  }
  [[nodiscard]] std::vector<int> Late() const {
    std::vector<int> late;
    for (int other = 0; other < size_; ++other)
      if (other != rank_ && !Said(other)) late.push_back(other);
    for (const Source& source : sources_)
      if (source.left.size() > 0 && Said(source.rank)) late.push_back(source.rank);
    return late;
  }
  [[nodiscard]] std::string Missing() const {
    std::string text;
    for (const int rank : Late()) text += (text.empty() ? ", waiting for rank " : ",") + std::to_string(rank);
    return text;
  }
  // What those that did not come did last.
  [[nodiscard]] std::string Last() const {
    std::string text;
    for (const int rank : Late()) {
      const HostMemory::Rank& they = memory_->of(rank);
      const uint32_t round = they.round.load();
      text += (text.empty() ? ": rank " : ", rank ") + std::to_string(rank) +
              (round == 0 ? std::string(" has done nothing yet")
                          : std::string(" came last to seq=") + they.said[round % 2].what);
    }
    return text;
  }

  const int rank_, size_;
  const double timeout_s_;
  const int64_t outbox_bytes_;
  const std::unique_ptr<HostMemory> memory_;
  uint32_t round_ = 0;  // that this rank has said
  Mark mark_{};
  bool marked_ = false;
  bool one_copy_ = true;  // the same on all ranks
  // Of what is shown.
  struct Source {
    int rank;
    Shown shown;
    Interval left;   // that is not taken yet
    uint32_t units;  // written when it was looked at
  };
  std::vector<Source> sources_;
  bool can_take_ = true;
  // Of the operation that is under way.
  int64_t seq_ = 0;
  std::string what_;
  Clock::time_point began_;
  double patience_s_ = 0;  // of a round
  Status failed_;
};

}  // namespace

std::unique_ptr<Collective> MakeHostGroup(const GroupOptions& options, std::unique_ptr<HostMemory> memory) {
  return std::make_unique<HostGroup>(options, std::move(memory));
}

}  // namespace tidepool::comm
