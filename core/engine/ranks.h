#pragma once
// The ranks that are one engine, each with a part of the model (core/model/cut.h) and the keys and values of
// its heads, in the same blocks. The first leads: it is an Engine, and decides alone. What it computes with
// the model it tells the others (Follower) beforehand, so that all run the same rows. Errors of the group are
// thrown as model::PeersFailed: the ranks are of no use to each other then.
//
// One thread uses it, that which has the engine.

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/comm/collective.h"
#include "core/device/device.h"
#include "core/model/decoder.h"
#include "core/model/peers.h"

namespace tidepool::engine {

// What the leader tells the others.
struct Order {
  enum Kind : char {
    kForward = 'f',  // copies of slots, then one forward of a batch (ForwardOrder)
    kHead = 'h',     // logits of some of its rows (HeadOrder)
    kKept = 'k',     // say whether keys and values are what they were (AllKept)
    kOther = 'o',    // something of those who have the engine: its weights
  };
  Kind kind = kOther;
  std::string body;
};

class Ranks {
 public:
  // `peers` are those of `group`. Both outlive it.
  Ranks(comm::Collective& group, model::Peers& peers) : group_(group), peers_(peers) {}

  [[nodiscard]] model::Part part() const { return peers_.part(); }
  [[nodiscard]] bool leads() const { return part().rank == 0; }
  [[nodiscard]] model::Peers& peers() { return peers_; }

  // From the leader to all others. `patience_s`: for those that are not there yet; 0: the group's deadline.
  // requires leads()
  void Tell(const Order& order, double patience_s = 0);
  // The leader's next order; nothing where none has come after `patience`. requires !leads()
  std::optional<Order> Next(std::chrono::milliseconds patience);
  // What each has to say of the last order, rank after rank. Whoever has more to do than others is waited
  // for.
  std::vector<std::string> Answers(const std::string& mine, double patience_s);
  // Between two grants a rank may have given its keys and values back. Whether none has: the leader asks, the
  // others answer its kKept. Both within `patience_s`.
  bool AllKept(bool mine, double patience_s);  // requires leads()
  void AnswerKept(bool mine, double patience_s);

  // The leader's logits [n, vocabulary] of all ranks' [n, part of it]; of the others nothing.
  device::Array Whole(device::Device& device, const model::ModelSpec& whole, const device::View& logits);

 private:
  comm::Collective& group_;
  model::Peers& peers_;
};

// Slots [from, from + count) of all layers to [to, to + count).
struct SlotCopy {
  int32_t from = 0, to = 0, count = 0;
};
std::string PackForward(std::span<const SlotCopy> copies, const model::RaggedBatch& batch);
// Its arrays, as they were packed.
struct ForwardOrder {
  std::vector<SlotCopy> copies;
  std::vector<int32_t> ids, positions, slots, first_run, lengths;
  std::vector<device::KvRun> runs;
  [[nodiscard]] model::RaggedBatch batch() const {
    return {.ids = ids,
            .positions = positions,
            .slots = slots,
            .first_run = first_run,
            .lengths = lengths,
            .runs = runs};
  }
};
ForwardOrder UnpackForward(const std::string& body);

// Hidden states that tokens are drawn from: rows of the last forward, then states that were kept.
struct HeadOrder {
  std::vector<int32_t> rows;
  std::string states;  // behind each other, [n, hidden] in the model's dtype
};
std::string PackHead(const HeadOrder& head);
HeadOrder UnpackHead(const std::string& body);
// [rows + states, hidden]: `hidden` itself where it is just that.
device::Array SelectHidden(device::Device& device, const device::Array& hidden, int64_t width,
                           model::DType dtype, const HeadOrder& head);

}  // namespace tidepool::engine
