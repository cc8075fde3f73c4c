// The one file that knows c10d. Its header needs gloo's headers, which the LibTorch wheel leaves out:
// Debian's serve for the declarations, the code is the wheel's own. Layouts could drift apart, so a
// group proves itself with a small sum before it is handed out.

#include "core/comm/gloo_group.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <type_traits>
#include <utility>

#include "core/comm/c10d_store.h"
#include "core/comm/exchange.h"

namespace tidepool::comm {
namespace {

at::Tensor View(std::span<std::byte> v) {
  return at::from_blob(v.data(), {static_cast<int64_t>(v.size())}, at::TensorOptions().dtype(at::kByte));
}

// For what is sent: tensors know no const, and sending writes nothing.
at::Tensor View(std::span<const std::byte> v) {
  return View(std::span(const_cast<std::byte*>(v.data()), v.size()));
}

using sharding::Interval;

// What is sent at a time to one rank: large enough for a socket's full speed, small enough for the
// processor's cache where it is summed.
constexpr int64_t kBucketBytes = int64_t{1} << 20;

template <typename T>
std::span<T> In(std::span<T> all, const Interval& i) {
  return all.subspan(static_cast<size_t>(i.from), static_cast<size_t>(i.size()));
}

// Sends and receives that are under way. What is being sent or written into outlives it.
class Transfers {
 public:
  explicit Transfers(c10d::ProcessGroupGloo& group) : group_(group) {}
  template <typename T>
  void Send(std::span<T> what, int to, int tag) {
    if (what.empty()) return;
    std::vector<at::Tensor> tensors{View(what)};
    works_.push_back(group_.send(tensors, to, tag));
  }
  template <typename T>
  void Receive(std::span<T> into, int from, int tag) {
    if (into.empty()) return;
    std::vector<at::Tensor> tensors{View(into)};
    works_.push_back(group_.recv(tensors, from, tag));
  }
  void End() {
    for (const auto& work : works_) work->wait();  // waits: at most GroupOptions::timeout_s; then it throws
    works_.clear();
  }

 private:
  c10d::ProcessGroupGloo& group_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

class GlooGroup final : public Collective {
 public:
  GlooGroup(const GroupOptions& options, c10::intrusive_ptr<C10dStore> store,
            c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : options_(options), store_(std::move(store)), group_(std::move(group)) {}

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }

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
    return Gather(mine, tag, 0);
  }

  // Gloo gathers equal sizes: what is shorter is padded.
  StatusOr<std::vector<std::string>> AllGather(const std::string& mine, const std::string& tag,
                                               double patience_s) override {
    TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes,
                        Gather(uint64_t{mine.size()}, tag + ", sizes", patience_s));
    const size_t most = *std::ranges::max_element(sizes);
    std::string padded = mine;
    padded.resize(most);
    std::vector<std::string> all(sizes.size(), std::string(most, '\0'));
    if (most > 0) {
      const auto bytes = [](std::string& s) {
        return at::from_blob(s.data(), {static_cast<int64_t>(s.size())},
                             at::TensorOptions().dtype(at::kByte));
      };
      std::vector<at::Tensor> in{bytes(padded)};
      std::vector<std::vector<at::Tensor>> out(1);
      for (std::string& part : all) out[0].push_back(bytes(part));
      TP_RETURN_IF_ERROR(Guarded("all_gather", tag, [&] { Finish(group_->allgather(out, in)); }));
    }
    for (size_t rank = 0; rank < all.size(); ++rank) all[rank].resize(sizes[rank]);
    return all;
  }

  StatusOr<bool> Begun(int by, std::chrono::milliseconds /*patience*/) override {
    return Unimplemented("by sockets nobody sees whether rank " + std::to_string(by) +
                         " has come to an operation");
  }

  Status ReduceScatterSum(const Scatter& s, const std::string& tag) override {
    return Guarded("reduce_scatter", tag, [&] { ScatterSum(s.values, s.has, s.of_rank, s.into); });
  }

  Status AllGather(std::span<std::byte> bytes, std::span<const Interval> of_rank,
                   const std::string& tag) override {
    const auto began = std::chrono::steady_clock::now();
    TP_RETURN_IF_ERROR(Guarded("all_gather", tag, [&] { Share(bytes, of_rank, 1); }));
    Count(tag, of_rank, began);
    return OkStatus();
  }

  Status AllToAll(const Exchange& e, const std::string& tag) override {
    const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
    std::vector<uint64_t> sizes(ranks * ranks);
    std::vector<Interval> of_rank;
    for (int64_t r = 0; r < size(); ++r) {
      sizes[me * ranks + static_cast<size_t>(r)] = static_cast<uint64_t>(e.to[static_cast<size_t>(r)].size());
      of_rank.push_back({r * size(), (r + 1) * size()});
    }
    return Guarded("all_to_all", tag, [&]() -> Status {
      Share(std::as_writable_bytes(std::span(sizes)), of_rank, sizeof(uint64_t));
      TP_RETURN_IF_ERROR(CheckSizes(sizes, e.from, rank(), tag));
      std::ranges::copy(In(e.out, e.to[me]), e.in.begin() + e.from[me].from);
      Transfers under_way(*group_);
      for (size_t other = 0; other < ranks; ++other) {
        if (other == me) continue;
        under_way.Receive(In(e.in, e.from[other]), static_cast<int>(other), Tag());
        under_way.Send(In(e.out, e.to[other]), static_cast<int>(other), Tag());
      }
      under_way.End();
      return OkStatus();
    });
  }

 private:
  // Between two ranks messages of one tag arrive in order, and every rank makes the same calls: the tag need
  // not be unique, it tells a call that the ranks do not agree about.
  [[nodiscard]] int Tag() const { return static_cast<int>(seq_ & 0xffffff); }

  static void Finish(const c10::intrusive_ptr<c10d::Work>& work) {
    work->wait();  // waits: at most GroupOptions::timeout_s, which the group was made with; then it throws
  }

  // Each rank sums its share of the elements in the order of the ranks, and all get it. So the bits are those
  // of ranks that share memory.
  template <typename T>
  Status Reduce(std::span<T> values, const std::string& tag) {
    if (values.empty()) return OkStatus();
    return Guarded("all_reduce", tag, [&] {
      const std::vector<Interval> of_rank = sharding::OwnedByAll(static_cast<int64_t>(values.size()), size());
      ScatterSum<T>(values, {}, of_rank, In(values, of_rank[static_cast<size_t>(rank())]));
      Share(std::as_writable_bytes(values), of_rank, static_cast<int64_t>(sizeof(T)));
    });
  }

  template <typename T>
  Status ReduceTree(const Tree& tree, std::span<T> sum, const std::string& tag) {
    if (sum.empty()) return OkStatus();
    return Guarded("all_reduce_tree", tag, [&] {
      constexpr int64_t kSize = kBucketBytes / static_cast<int64_t>(sizeof(float));
      const AllNodes all(tree.nodes);
      const auto n = static_cast<int64_t>(sum.size());
      const auto me = static_cast<size_t>(rank()), ranks = static_cast<size_t>(size());
      const std::vector<Interval> of_rank = sharding::OwnedByAll(n, size());
      const auto piece = [](auto all, int64_t from, int64_t size) {
        return all.subspan(static_cast<size_t>(from), static_cast<size_t>(size));
      };
      std::vector<std::vector<float>> came(ranks);
      const int64_t buckets = Buckets(of_rank, kSize);
      for (int64_t b = 0; b < buckets; ++b) {
        Transfers under_way(*group_);
        const Interval mine = Bucket(of_rank[me], b, kSize);
        for (size_t other = 0; other < ranks; ++other) {
          if (other == me) continue;
          const Interval theirs = Bucket(of_rank[other], b, kSize);
          for (size_t node = 0; node < tree.nodes[me].size(); ++node)
            under_way.Send(
                std::as_bytes(piece(tree.mine, static_cast<int64_t>(node) * n + theirs.from, theirs.size())),
                static_cast<int>(other), Tag());
          came[other].resize(tree.nodes[other].size() * static_cast<size_t>(mine.size()));
          for (size_t node = 0; node < tree.nodes[other].size(); ++node)
            under_way.Receive(
                std::as_writable_bytes(
                    piece(std::span(came[other]), static_cast<int64_t>(node) * mine.size(), mine.size())),
                static_cast<int>(other), Tag());
        }
        under_way.End();
        SumTree(In(sum, mine), all, [&](int rank, int64_t node) -> const float* {
          return static_cast<size_t>(rank) == me
                     ? tree.mine.data() + node * n + mine.from
                     : came[static_cast<size_t>(rank)].data() + node * mine.size();
        });
      }
      Share(std::as_writable_bytes(sum), of_rank, static_cast<int64_t>(sizeof(T)));
    });
  }

  template <typename T>
  void ScatterSum(std::span<const T> values, std::span<const uint8_t> has, std::span<const Interval> of_rank,
                  std::span<T> into) {
    constexpr int64_t kSize = kBucketBytes / static_cast<int64_t>(sizeof(T));
    const int me = rank();
    const Interval& own = of_rank[static_cast<size_t>(me)];
    const int64_t buckets = Buckets(of_rank, kSize);
    // Of the bucket that is summed and of the next one, which comes meanwhile.
    std::vector<std::vector<T>> came[2];
    Transfers under_way[2] = {Transfers(*group_), Transfers(*group_)};
    const auto begin = [&](int64_t b) {
      came[b % 2].resize(of_rank.size());
      for (int other = 0; other < size(); ++other) {
        if (other == me) continue;
        const auto place = static_cast<size_t>(other);
        if (Has(has, other)) {
          std::vector<T>& theirs = came[b % 2][place];
          theirs.resize(static_cast<size_t>(Bucket(own, b, kSize).size()));
          under_way[b % 2].Receive(std::as_writable_bytes(std::span(theirs)), other, Tag());
        }
        if (Has(has, me))
          under_way[b % 2].Send(std::as_bytes(In(values, Bucket(of_rank[place], b, kSize))), other, Tag());
      }
    };
    if (buckets > 0) begin(0);
    for (int64_t b = 0; b < buckets; ++b) {
      if (b + 1 < buckets) begin(b + 1);
      under_way[b % 2].End();
      const Interval i = Bucket(own, b, kSize);
      SumInOrder(In(into, {i.from - own.from, i.to - own.from}), size(), [&](int other) -> const T* {
        if (!Has(has, other)) return nullptr;
        return other == me ? values.data() + i.from : came[b % 2][static_cast<size_t>(other)].data();
      });
    }
  }

  void Share(std::span<std::byte> bytes, std::span<const Interval> of_rank, int64_t each) {
    const auto me = static_cast<size_t>(rank());
    const auto piece = [&](size_t rank) {
      return In(bytes, Interval{of_rank[rank].from * each, of_rank[rank].to * each});
    };
    Transfers under_way(*group_);
    for (size_t other = 0; other < of_rank.size(); ++other) {
      if (other == me) continue;
      under_way.Receive(piece(other), static_cast<int>(other), Tag());
      under_way.Send(piece(me), static_cast<int>(other), Tag());
    }
    under_way.End();
  }

  StatusOr<std::vector<uint64_t>> Gather(uint64_t mine, const std::string& tag, double patience_s) {
    std::vector<uint64_t> all(static_cast<size_t>(options_.size));
    std::vector<at::Tensor> parts;
    for (uint64_t& v : all) parts.push_back(at::from_blob(&v, {1}, at::TensorOptions().dtype(at::kLong)));
    std::vector<at::Tensor> in{at::from_blob(&mine, {1}, at::TensorOptions().dtype(at::kLong))};
    std::vector<std::vector<at::Tensor>> out{parts};
    c10d::AllgatherOptions how;
    if (patience_s > 0) how.timeout = std::chrono::milliseconds(static_cast<int64_t>(patience_s * 1000));
    TP_RETURN_IF_ERROR(Guarded("all_gather", tag, [&] { Finish(group_->allgather(out, in, how)); }));
    return all;
  }

  // LibTorch throws; this is the door. Gloo's message says which connection, ours what was being done.
  template <typename Do>
  Status Guarded(const char* op, const std::string& tag, Do what_is_asked) {
    ++seq_;
    const auto begin = std::chrono::steady_clock::now();
    try {
      if constexpr (std::is_same_v<decltype(what_is_asked()), Status>) {
        return what_is_asked();
      } else {
        what_is_asked();
        return OkStatus();
      }
    } catch (const std::exception& e) {
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const bool timed_out = s >= options_.timeout_s * 0.9;
      const std::string what = std::string("collective op=") + op + " tag=" + tag +
                               " seq=" + std::to_string(seq_) + " rank=" + std::to_string(options_.rank) +
                               "/" + std::to_string(options_.size) + " failed after " + std::to_string(s) +
                               " s" + WhomItWaitedFor(std::string(op) + " tag=" + tag, timed_out) + ": " +
                               e.what();
      return timed_out ? DeadlineExceeded(what) : Unavailable(what);
    }
  }

  // Gloo says which connection failed, not who was late. So each rank whose operation fails says where they
  // met which one it was: the ranks that wait fail alike, and who writes nothing within a
  // moment is the one that did not come. Where a connection broke, its process is gone, and the controller,
  // which knows, is not kept waiting.
  std::string WhomItWaitedFor(const std::string& op, bool timed_out) noexcept {
    const auto text_of = [](const std::vector<uint8_t>& bytes) {
      return std::string(bytes.begin(), bytes.end());
    };
    const std::string mine = std::to_string(seq_) + " op=" + op;
    std::string late, elsewhere;
    try {
      const auto key = [](int rank) { return "failed/" + std::to_string(rank); };
      store_->set(key(options_.rank), std::vector<uint8_t>(mine.begin(), mine.end()));
      const auto until = std::chrono::steady_clock::now() +
                         std::chrono::milliseconds(
                             static_cast<int64_t>(timed_out ? std::min(2e3, 1e2 * options_.timeout_s) : 200));
      for (int rank = 0; rank < options_.size; ++rank) {
        if (rank == options_.rank) continue;
        bool said = store_->check({key(rank)});
        while (!said && std::chrono::steady_clock::now() < until) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          said = store_->check({key(rank)});
        }
        if (!said) {
          late += (late.empty() ? "" : ",") + std::to_string(rank);
        } else if (const std::string theirs = text_of(store_->get(key(rank))); theirs != mine) {
          elsewhere += ", rank " + std::to_string(rank) + " was at seq=" + theirs;
        }
      }
    } catch (const std::exception&) {  // the group is over, or the controller is away: then it is not said
    }
    return (late.empty() ? "" : ", waiting for rank " + late) + elsewhere;
  }

  GroupOptions options_;
  c10::intrusive_ptr<C10dStore> store_;  // where the ranks met
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int64_t seq_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<Collective>> MakeGlooGroup(const GroupOptions& o) {
  // c10d notes every collective in a table of the process; groups of several threads write to it without a
  // lock (a crash, once in some hundred groups of data_parallel_test on a busy machine). Nobody reads it
  // here.
  static std::once_flag no_flight_recorder;
  std::call_once(no_flight_recorder, [] { setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout_s * 1000));
  std::unique_ptr<Collective> made;
  try {
    auto store = c10::make_intrusive<C10dStore>(o.rendezvous, o.name + "/", timeout);
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(o.host));
    made = std::make_unique<GlooGroup>(
        o, store, c10::make_intrusive<c10d::ProcessGroupGloo>(store, o.rank, o.size, options));
  } catch (const std::exception& e) {
    return Unavailable(Ranks(o) + " could not meet the others within " + std::to_string(o.timeout_s) +
                       " s: " + e.what());
  }
  // Proof of life, and that declarations and code agree.
  std::vector<double> sum(3, static_cast<double>(o.rank + 1));
  TP_RETURN_IF_ERROR(made->AllReduceSum(std::span<double>(sum), "self_test"));
  const double expected = o.size * (o.size + 1) / 2.0;
  if (sum[0] != expected || sum[2] != expected) {
    return Internal("collective group: a sum of ranks gave " + std::to_string(sum[0]) + ", expected " +
                    std::to_string(expected));
  }
  return made;
}

}  // namespace tidepool::comm
