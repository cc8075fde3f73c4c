#include "core/engine/block_pool.h"

#include <utility>

#include "core/base/check.h"

namespace tidepool::engine {

BlockPool::BlockPool(int64_t blocks, std::function<void(int32_t)> on_evict)
    : blocks_(static_cast<size_t>(blocks)), on_evict_(std::move(on_evict)) {
  TP_CHECK(blocks > 0) << blocks << " blocks";
  free_.reserve(blocks_.size());
  for (int64_t b = blocks - 1; b >= 0; --b) free_.push_back(static_cast<int32_t>(b));
}

BlockPool::Key BlockPool::KeyOf(int32_t block) const {
  const Block& b = blocks_[static_cast<size_t>(block)];
  return {b.released, -b.depth, block};
}

void BlockPool::Promise(int64_t n) {
  TP_CHECK(n >= 0 && n <= Available()) << n << " blocks promised of " << Available();
  promised_ += n;
}

void BlockPool::Withdraw(int64_t n) {
  TP_CHECK(n >= 0 && n <= promised_) << n << " promises of " << promised_;
  promised_ -= n;
}

int32_t BlockPool::AllocatePromised() {
  Withdraw(1);
  return Take();
}

int32_t BlockPool::Allocate() {
  TP_CHECK(Available() > 0) << "no block is left that was not promised";
  return Take();
}

int32_t BlockPool::Take() {
  if (free_.empty()) {
    TP_CHECK(!lru_.empty()) << "no block left of " << total();
    const int32_t victim = std::get<2>(*lru_.begin());
    on_evict_(victim);  // may call SetCached(victim, false), which frees it
    if (blocks_[static_cast<size_t>(victim)].keep) SetCached(victim, false);
  }
  const int32_t block = free_.back();
  free_.pop_back();
  blocks_[static_cast<size_t>(block)] = {.refs = 1};
  return block;
}

void BlockPool::Ref(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  TP_CHECK(b.refs > 0 || b.keep) << "block " << block << " is free";
  if (b.refs == 0) lru_.erase(KeyOf(block));
  ++b.refs;
}

void BlockPool::Unref(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  TP_CHECK(b.refs > 0) << "block " << block << " has no reference";
  if (--b.refs > 0) return;
  if (b.keep) {
    b.released = clock_;
    lru_.insert(KeyOf(block));
  } else {
    free_.push_back(block);
  }
}

void BlockPool::SetCached(int32_t block, bool keep, int32_t depth) {
  Block& b = blocks_[static_cast<size_t>(block)];
  if (b.refs == 0 && b.keep) lru_.erase(KeyOf(block));
  TP_CHECK(b.refs > 0 || b.keep || !keep) << "block " << block << " is free";
  const bool was_cached = b.refs == 0 && b.keep;
  b.keep = keep;
  b.depth = depth;
  if (was_cached) {
    if (keep) {
      lru_.insert(KeyOf(block));
    } else {
      free_.push_back(block);
    }
  }
}

}  // namespace tidepool::engine
