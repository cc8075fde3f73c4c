#pragma once
// A map for look-ups alone: one or two places of memory are touched however many entries there are, where the
// nodes of a std::map of 65 536 samples are some ten cache misses apart.
//
// Open addressing (linear probing, at most half full) into a pool of entries that never move: references and
// what Find returns stay valid until that entry is erased. The samples of a group can be kept side by side
// (FlatTable(group size)): they share one place of the index, which then stays in a cache where an index of
// samples does not, and what is done to a whole group is done to neighbours. It cannot be walked, because the
// order would be the hash's and scheduler/ must not depend on one: SortedKeys() where all are needed. Find
// returns nullptr, which is end(), for what is not there, so that callers read as with a std::map. Not
// thread-safe.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/ids.h"
#include "scheduler/stable_vector.h"

namespace tidepool::scheduler {

inline uint64_t KeyHash(const SampleId& tid) {
  return Mix64(static_cast<uint64_t>(tid.ordinal) ^
               (static_cast<uint64_t>(static_cast<uint32_t>(tid.issue)) << 44) ^
               (static_cast<uint64_t>(static_cast<uint32_t>(tid.sample)) << 32));
}
template <typename Tag>
uint64_t KeyHash(const StrongId<Tag>& id) {
  return Mix64(static_cast<uint64_t>(id.value));
}
inline uint64_t KeyHash(const WorkerRef& ref) {
  return Mix64(static_cast<uint64_t>(ref.worker.value) ^ (static_cast<uint64_t>(ref.inc.value) << 32));
}
inline uint64_t KeyHash(
    const std::pair<SampleId, int32_t>& attempt) {  // of one sample few are there at a time
  return KeyHash(attempt.first) + static_cast<uint64_t>(static_cast<uint32_t>(attempt.second));
}
inline uint64_t KeyHash(int64_t id) { return Mix64(static_cast<uint64_t>(id)); }

// Keys that lie together: `shift` is the logarithm of how many do. The first of them; which of them this is.
template <typename Key>
Key FirstBeside(const Key& key, int /*shift*/) {
  return key;
}
template <typename Key>
uint32_t PlaceBeside(const Key& /*key*/, int /*shift*/) {
  return 0;
}
inline SampleId FirstBeside(SampleId tid, int shift) {
  tid.sample = static_cast<int32_t>(static_cast<uint32_t>(tid.sample) >> shift << shift);
  return tid;
}
inline uint32_t PlaceBeside(const SampleId& tid, int shift) {
  return static_cast<uint32_t>(tid.sample) & ((1U << shift) - 1);
}

template <typename Key, typename T>
class FlatTable {
 public:
  struct Entry {
    Key first;
    T second;
  };

  // `together`: how many samples a group has (as far as entries of samples are to lie beside each other, up
  // to 8).
  explicit FlatTable(int64_t together = 1)
      : shift_(std::bit_width(static_cast<uint64_t>(std::clamp<int64_t>(together, 1, kMostTogether))) - 1) {}
  FlatTable(const FlatTable&) = delete;  // an index into a pool: nobody needs a second one
  FlatTable& operator=(const FlatTable&) = delete;
  FlatTable(FlatTable&& other) noexcept { *this = std::move(other); }
  FlatTable& operator=(FlatTable&& other) noexcept {  // entries stay where they are
    std::swap(places_, other.places_);
    std::swap(pool_, other.pool_);
    std::swap(used_, other.used_);
    std::swap(free_, other.free_);
    std::swap(size_, other.size_);
    std::swap(shift_, other.shift_);
    return *this;
  }

  [[nodiscard]] Entry* find(const Key& key) {
    if (size_ == 0) return nullptr;
    const uint32_t tag = Tag(key), inside = PlaceBeside(key, shift_);
    const size_t mask = places_.size() - 1;
    for (size_t at = tag & mask; places_[at].block != kFree; at = (at + 1) & mask) {
      if (places_[at].tag != tag || (shift_ != 0 && (used_[places_[at].block] >> inside & 1U) == 0)) continue;
      Entry& entry = Of(places_[at].block, inside);
      if (entry.first == key) return &entry;
    }
    return nullptr;
  }
  [[nodiscard]] const Entry* find(const Key& key) const { return const_cast<FlatTable*>(this)->find(key); }
  [[nodiscard]] static constexpr std::nullptr_t end() { return nullptr; }
  [[nodiscard]] bool contains(const Key& key) const { return find(key) != nullptr; }
  [[nodiscard]] T& at(const Key& key) {
    Entry* e = find(key);
    TP_CHECK(e != nullptr) << "no such key";
    return e->second;
  }
  [[nodiscard]] const T& at(const Key& key) const { return const_cast<FlatTable*>(this)->at(key); }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }

  // The entry and whether it is new; a new one is T{}.
  std::pair<Entry*, bool> try_emplace(const Key& key) {
    size_t place = Probe(key);
    if (place == kNowhere) {
      if (places_.size() < 2 * ((pool_.size() >> shift_) - free_.size() + 1)) Grow();
      place = Insert({Tag(key), NewBlock()});
    } else if (shift_ == 0) {
      return {&Of(places_[place].block, 0), false};
    }
    const uint32_t block = places_[place].block, inside = PlaceBeside(key, shift_);
    Entry& entry = Of(block, inside);
    if (shift_ != 0) {
      const auto bit = static_cast<uint8_t>(1U << inside);
      if ((used_[block] & bit) != 0) return {&entry, false};
      used_[block] |= bit;
    }
    entry.first = key;
    ++size_;
    return {&entry, true};
  }
  T& operator[](const Key& key) { return try_emplace(key).first->second; }

  size_t erase(const Key& key) {
    size_t hole = Probe(key);
    if (hole == kNowhere) return 0;
    const uint32_t block = places_[hole].block, inside = PlaceBeside(key, shift_);
    const auto bit = static_cast<uint8_t>(1U << inside);
    if (shift_ != 0 && (used_[block] & bit) == 0) return 0;
    Of(block, inside) = {};
    --size_;
    if (shift_ != 0 && (used_[block] &= static_cast<uint8_t>(~bit)) != 0) return 1;
    free_.push_back(block);
    // Those behind the hole move up as far as their own place allows.
    const size_t mask = places_.size() - 1;
    for (size_t next = (hole + 1) & mask; places_[next].block != kFree; next = (next + 1) & mask) {
      const size_t wants = places_[next].tag & mask;
      if (((next - wants) & mask) < ((next - hole) & mask)) continue;
      places_[hole] = places_[next];
      hole = next;
    }
    places_[hole].block = kFree;
    return 1;
  }
  void clear() {
    places_.clear();
    pool_.clear();
    used_.clear();
    free_.clear();
    size_ = 0;
  }
  [[nodiscard]] std::vector<Key> SortedKeys() const {
    std::vector<Key> keys;
    keys.reserve(size_);
    for (const Place& p : places_) {
      if (p.block == kFree) continue;
      for (uint32_t used = shift_ == 0 ? 1 : used_[p.block]; used != 0; used &= used - 1)
        keys.push_back(Of(p.block, static_cast<uint32_t>(std::countr_zero(used))).first);
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }

 private:
  static constexpr int64_t kMostTogether = 8;  // bits of an element of used_
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr size_t kNowhere = SIZE_MAX;
  struct Place {
    uint32_t tag = 0;  // of the hash: most of what is not meant is passed over without a look at its entry
    uint32_t block = kFree;  // of entries that lie together
  };
  [[nodiscard]] uint32_t Tag(const Key& key) const {
    return static_cast<uint32_t>(KeyHash(FirstBeside(key, shift_)));
  }
  [[nodiscard]] Entry& Of(uint32_t block, uint32_t inside) {
    return pool_[(static_cast<size_t>(block) << shift_) + inside];
  }
  [[nodiscard]] const Entry& Of(uint32_t block, uint32_t inside) const {
    return const_cast<FlatTable*>(this)->Of(block, inside);
  }
  // Of the block that `key` belongs to, whether or not itself is there.
  [[nodiscard]] size_t Probe(const Key& key) const {
    if (size_ == 0) return kNowhere;
    const uint32_t tag = Tag(key);
    const size_t mask = places_.size() - 1;
    for (size_t at = tag & mask; places_[at].block != kFree; at = (at + 1) & mask) {
      if (places_[at].tag != tag) continue;
      const uint32_t block = places_[at].block,
                     some = shift_ == 0 ? 0 : static_cast<uint32_t>(std::countr_zero(used_[block]));
      if (FirstBeside(Of(block, some).first, shift_) == FirstBeside(key, shift_)) return at;
    }
    return kNowhere;
  }
  uint32_t NewBlock() {
    if (!free_.empty()) {
      const uint32_t block = free_.back();
      free_.pop_back();
      return block;
    }
    const size_t blocks = pool_.size() >> shift_;
    TP_CHECK(blocks < kFree) << "a table of 2^32 blocks";
    if (shift_ != 0) used_.push_back(0);
    pool_.Grow((blocks + 1) << shift_);
    return static_cast<uint32_t>(blocks);
  }
  size_t Insert(const Place& place) {
    const size_t mask = places_.size() - 1;
    size_t at = place.tag & mask;
    while (places_[at].block != kFree) at = (at + 1) & mask;
    places_[at] = place;
    return at;
  }
  void Grow() {
    std::vector<Place> old(std::max<size_t>(16, 2 * places_.size()));
    old.swap(places_);
    for (const Place& p : old) {
      if (p.block != kFree) Insert(p);
    }
  }

  std::vector<Place> places_;  // a power of two, or none
  size_t size_ = 0;
  int shift_ = 0;
  std::vector<uint32_t> free_;  // blocks
  std::vector<uint8_t> used_;   // by block: which of its entries are there; with shift_ 0 all are
  StableVector<Entry> pool_;
};

}  // namespace tidepool::scheduler
