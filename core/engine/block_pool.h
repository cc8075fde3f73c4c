#pragma once
// Blocks of the KV cache: who holds them, who was promised some, which may be taken back.
//
// A block is `free`, `held` (reference count > 0), or `cached` (count 0, content kept for a prefix
// that may come again). Cached blocks are taken back in order of (last release, deeper first), so a
// prefix never loses a block before the blocks behind it. Admission is arithmetic:
//   Available() = free + cached - promised;   a request is admitted when its need fits,
// and what was promised can then always be allocated: nothing is preempted.
// Bookkeeping only: no memory. Not thread-safe.

#include <cstdint>
#include <functional>
#include <set>
#include <tuple>
#include <vector>

namespace tidepool::engine {

class BlockPool {
 public:
  // `on_evict(block)`: the content of a cached block is about to be given up. requires blocks > 0.
  BlockPool(int64_t blocks, std::function<void(int32_t)> on_evict);

  [[nodiscard]] int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  [[nodiscard]] int64_t free() const { return static_cast<int64_t>(free_.size()); }
  [[nodiscard]] int64_t cached() const { return static_cast<int64_t>(lru_.size()); }
  [[nodiscard]] int64_t promised() const { return promised_; }
  [[nodiscard]] int64_t Available() const { return free() + cached() - promised_; }
  [[nodiscard]] int32_t refs(int32_t block) const { return blocks_[static_cast<size_t>(block)].refs; }

  void Promise(int64_t n);   // requires n <= Available()
  void Withdraw(int64_t n);  // gives back n promises; requires n <= promised()

  // A block with one reference; evicts the oldest cached one if none is free.
  int32_t AllocatePromised();  // uses up one promise
  int32_t Allocate();          // requires Available() > 0

  void Ref(int32_t block);  // a cached block becomes held: Available() shrinks by one
  // Drops a reference. At zero the block is cached if SetCached(block, true) was said, else free.
  // requires refs > 0.
  void Unref(int32_t block);

  // Blocks released between two ticks count as released together. Called once a step.
  void Tick() { ++clock_; }

  // Is the content worth keeping? `depth` = blocks before it in its sequence.
  void SetCached(int32_t block, bool keep, int32_t depth = 0);

 private:
  struct Block {
    int32_t refs = 0;
    bool keep = false;
    int32_t depth = 0;
    uint64_t released = 0;
  };
  using Key = std::tuple<uint64_t, int32_t, int32_t>;  // released, -depth, block
  [[nodiscard]] Key KeyOf(int32_t block) const;
  int32_t Take();

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack: blocks used last are used again first, so memory stays small
  std::set<Key> lru_;
  std::function<void(int32_t)> on_evict_;
  int64_t promised_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace tidepool::engine
