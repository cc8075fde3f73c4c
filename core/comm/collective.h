#pragma once
// Collectives among the ranks of one actor group, behind one interface so that the trainer knows neither
// shared memory nor Gloo nor NCCL. Every rank calls the same operations in the same order with the same
// sizes.
//
// Reduction order: the sum of an element of host memory is formed in the order of the ranks, however they
// exchange, so equal inputs give equal bits (what the deterministic mode asks for).
// Every call has the group's deadline: a rank that is missing is an error, never a hang.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/rendezvous.h"
#include "core/sharding/intervals.h"
#include "core/sharding/sum_tree.h"

namespace tidepool::comm {

// Sums memory of a device where it is (NCCL). The same rules hold.
class DeviceSum {
 public:
  virtual ~DeviceSum() = default;
  // In place, over all ranks: n elements from `values` on, which the device's kernels wrote and read.
  virtual Status AllReduceSum(float* values, int64_t n, const std::string& tag) = 0;
};

// One thread of the process uses it at a time.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // In place, over all ranks. `tag` names the operation in errors. kUnavailable when a rank is gone,
  // kDeadlineExceeded when one did not come, kInternal when one is at another operation; the buffer then
  // holds anything and the group is useless.
  virtual Status AllReduceSum(std::span<float> values, const std::string& tag) = 0;
  virtual Status AllReduceSum(std::span<double> values, const std::string& tag) = 0;
  // Of bfloat16 numbers, by their bits: added up in float32 in the order of the ranks, rounded once.
  virtual Status AllReduceSum(std::span<uint16_t> bfloat16, const std::string& tag) = 0;
  // `sum`, the same on all ranks, becomes what they have, added up by the tree of core/sharding/sum_tree.h in
  // float32 and, of bfloat16, rounded once. `nodes` by rank, the same on all ranks; `mine`: those of this
  // rank behind each other, each as long as `sum`.
  struct Tree {
    std::span<const std::vector<sharding::SumNode>> nodes;
    std::span<const float> mine;
  };
  virtual Status AllReduceTree(const Tree& tree, std::span<float> sum, const std::string& tag) = 0;
  virtual Status AllReduceTree(const Tree& tree, std::span<uint16_t> bfloat16, const std::string& tag) = 0;
  // One number from each rank, by rank.
  virtual StatusOr<std::vector<uint64_t>> AllGather(uint64_t mine, const std::string& tag) = 0;
  // Some bytes from each rank, by rank; they may differ in number. `patience_s`: for the ranks that come
  // late; 0: the group's deadline.
  virtual StatusOr<std::vector<std::string>> AllGather(const std::string& mine, const std::string& tag,
                                                       double patience_s = 0) = 0;

  // Whether rank `by` has come to the next operation, which this rank then has to come to, too; waits for it
  // for so long. For ranks that have nothing to do until that one says what. kUnavailable: it is gone.
  // kUnimplemented: they exchange by sockets.
  virtual StatusOr<bool> Begun(int by, std::chrono::milliseconds patience) = 0;

  // The intervals of the ranks may differ in length, be empty, and leave out some of the span; they are the
  // same on all ranks, none in common. Each piece is sent once to whom it is for, and no more than a bucket
  // of each rank is held beside the spans.
  //
  // Sums over the ranks that have values, formed in the order of the ranks; zeros where none has any. A rank
  // that has none comes all the same, for what it gets.
  struct Scatter {
    std::span<const float> values;                // of this rank; not read where it has none
    std::span<const uint8_t> has = {};            // [rank] 0: it has none. Empty: all have
    std::span<const sharding::Interval> of_rank;  // of `values`
    std::span<float> into;  // [of_rank[rank()]] its sums; may be that interval of `values`
  };
  virtual Status ReduceScatterSum(const Scatter& scatter, const std::string& tag) = 0;
  // Every rank gets what each rank has in its interval: of bytes here.
  virtual Status AllGather(std::span<std::byte> bytes, std::span<const sharding::Interval> of_rank,
                           const std::string& tag) = 0;

  // The same of what the ranks write meanwhile: `write` writes this rank's interval from its begin on, and
  // says now and then up to which byte of `bytes` it is there, so that the others may take it already. False
  // on all ranks: nothing was written, so nothing is given.
  using Wrote = std::function<void(int64_t to)>;
  virtual Status AllGatherWritten(std::span<std::byte> bytes, std::span<const sharding::Interval> of_rank,
                                  const std::function<bool(const Wrote&)>& write, const std::string& tag) {
    return write([](int64_t) {}) ? AllGather(bytes, of_rank, tag) : OkStatus();
  }

  // Each rank gives each an interval of its bytes, which may be empty, and gets one from it. What is for a
  // rank and what that rank gets have the same length; its own is copied. kInternal: two ranks disagree about
  // one.
  struct Exchange {
    std::span<const std::byte> out;
    std::span<const sharding::Interval> to;    // [rank] of `out`
    std::span<std::byte> in;                   // not `out`
    std::span<const sharding::Interval> from;  // [rank] of `in`
  };
  virtual Status AllToAll(const Exchange& exchange, const std::string& tag) = 0;

  // What this rank got of the others' intervals by the two above, and how long that took, by tag.
  struct Gathered {
    int64_t bytes = 0;
    double seconds = 0;
  };
  [[nodiscard]] Gathered gathered(const std::string& tag) const {
    const auto it = gathered_.find(tag);
    return it == gathered_.end() ? Gathered() : it->second;
  }

  // How they exchange: "memory", or "sockets" and why.
  [[nodiscard]] const std::string& by() const { return by_; }
  void SetBy(std::string by) { by_ = std::move(by); }

  // Of the same ranks; null: memory of a device comes to the host to be summed.
  void SumOnDevices(std::unique_ptr<DeviceSum> sum) { device_sum_ = std::move(sum); }
  [[nodiscard]] DeviceSum* device_sum() const { return device_sum_.get(); }

 protected:
  void Count(const std::string& tag, std::span<const sharding::Interval> of_rank,
             std::chrono::steady_clock::time_point began) {
    Gathered& sum = gathered_[tag];
    for (size_t other = 0; other < of_rank.size(); ++other)
      if (static_cast<int>(other) != rank()) sum.bytes += of_rank[other].size();
    sum.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  std::map<std::string, Gathered> gathered_;
  std::unique_ptr<DeviceSum> device_sum_;
  std::string by_;
};

// The groups that a rank which trains is in; null: it is alone there.
struct RankGroups {
  Collective* data = nullptr;   // of those that have other rows of a batch
  Collective* parts = nullptr;  // of those that have other parts of the model (core/model/cut.h): of
                                // matrices, and the same rows; or of experts, and rows of their own
  Collective* same = nullptr;   // where experts are divided, of those that have the same ones, and other rows
};

struct GroupOptions {
  std::shared_ptr<Rendezvous> rendezvous;  // the same for all ranks, and new for each group
  std::string name = "gloo";               // of this one among the groups that share a rendezvous
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // of this rank, that the others can reach; what is summed is not encrypted
  // A folder in this host's shared memory that nobody but this user can enter. Ranks that all see the same
  // one exchange by memory (host_group.h). Empty, or where one of them does not: by sockets.
  std::string shared_folder = {};
  double timeout_s = 60;  // of the meeting and of each operation
};

// Meets the other ranks: returns once all are there. kUnavailable: they did not come together; it says who
// was not there.
StatusOr<std::unique_ptr<Collective>> MakeGroup(const GroupOptions& options);

}  // namespace tidepool::comm
