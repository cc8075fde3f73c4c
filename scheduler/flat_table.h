#pragma once
// A map for look-ups alone: one or two places of memory are touched however many entries there are, where the nodes of a
// std::map of 65 536 samples are some ten cache misses apart.
//
// Open addressing (linear probing, at most half full) into a pool of entries that never move: references and what Find
// returns stay valid until that entry is erased. It cannot be walked, because the order would be the hash's and scheduler/ must
// not depend on one: SortedKeys() where all are needed. Find returns nullptr, which is end(), for what is not there, so
// that callers read as with a std::map. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/ids.h"
#include "scheduler/stable_vector.h"

namespace tidepool::scheduler {

inline uint64_t KeyHash(const SampleId& tid) {
  return Mix64(static_cast<uint64_t>(tid.ordinal) ^ (static_cast<uint64_t>(static_cast<uint32_t>(tid.issue)) << 44) ^
               (static_cast<uint64_t>(static_cast<uint32_t>(tid.sample)) << 32));
}
template <typename Tag>
uint64_t KeyHash(const StrongId<Tag>& id) {
  return Mix64(static_cast<uint64_t>(id.value));
}
inline uint64_t KeyHash(const WorkerRef& ref) { return Mix64(static_cast<uint64_t>(ref.worker.value) ^ (static_cast<uint64_t>(ref.inc.value) << 32)); }
inline uint64_t KeyHash(int64_t id) { return Mix64(static_cast<uint64_t>(id)); }

template <typename Key, typename T>
class FlatTable {
 public:
  struct Entry {
    Key first;
    T second;
  };

  FlatTable() = default;
  FlatTable(const FlatTable&) = delete;            // an index into a pool: nobody needs a second one
  FlatTable& operator=(const FlatTable&) = delete;
  FlatTable(FlatTable&& other) noexcept { *this = std::move(other); }
  FlatTable& operator=(FlatTable&& other) noexcept {  // entries stay where they are
    std::swap(places_, other.places_);
    std::swap(pool_, other.pool_);
    std::swap(free_, other.free_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] Entry* find(const Key& key) {
    const size_t at = Probe(key);
    return at == kNowhere ? nullptr : &pool_[places_[at].entry];
  }
  [[nodiscard]] const Entry* find(const Key& key) const { return const_cast<FlatTable*>(this)->find(key); }
  [[nodiscard]] static constexpr std::nullptr_t end() { return nullptr; }
  [[nodiscard]] bool contains(const Key& key) const { return Probe(key) != kNowhere; }
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
    if (Entry* there = find(key); there != nullptr) return {there, false};
    if (places_.size() < 2 * (size_ + 1)) Grow();
    uint32_t entry = 0;
    if (free_.empty()) {
      TP_CHECK(pool_.size() < kFree) << "a table of 2^32 entries";
      entry = static_cast<uint32_t>(pool_.size());
      pool_.Grow(pool_.size() + 1);
    } else {
      entry = free_.back();
      free_.pop_back();
    }
    pool_[entry].first = key;
    Insert({Tag(key), entry});
    ++size_;
    return {&pool_[entry], true};
  }
  T& operator[](const Key& key) { return try_emplace(key).first->second; }

  size_t erase(const Key& key) {
    size_t hole = Probe(key);
    if (hole == kNowhere) return 0;
    const uint32_t entry = places_[hole].entry;
    pool_[entry] = {};
    free_.push_back(entry);
    --size_;
    // Those behind the hole move up as far as their own place allows.
    const size_t mask = places_.size() - 1;
    for (size_t next = (hole + 1) & mask; places_[next].entry != kFree; next = (next + 1) & mask) {
      const size_t wants = places_[next].tag & mask;
      if (((next - wants) & mask) < ((next - hole) & mask)) continue;
      places_[hole] = places_[next];
      hole = next;
    }
    places_[hole].entry = kFree;
    return 1;
  }
  void clear() {
    places_.clear();
    pool_.clear();
    free_.clear();
    size_ = 0;
  }
  [[nodiscard]] std::vector<Key> SortedKeys() const {
    std::vector<Key> keys;
    keys.reserve(size_);
    for (const Place& p : places_) {
      if (p.entry != kFree) keys.push_back(pool_[p.entry].first);
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr size_t kNowhere = SIZE_MAX;
  struct Place {
    uint32_t tag = 0;              // of the hash: most of what is not meant is passed over without a look at its entry
    uint32_t entry = kFree;
  };
  static uint32_t Tag(const Key& key) { return static_cast<uint32_t>(KeyHash(key)); }
  [[nodiscard]] size_t Probe(const Key& key) const {
    if (size_ == 0) return kNowhere;
    const uint32_t tag = Tag(key);
    const size_t mask = places_.size() - 1;
    for (size_t at = tag & mask; places_[at].entry != kFree; at = (at + 1) & mask) {
      if (places_[at].tag == tag && pool_[places_[at].entry].first == key) return at;
    }
    return kNowhere;
  }
  void Insert(const Place& place) {
    const size_t mask = places_.size() - 1;
    size_t at = place.tag & mask;
    while (places_[at].entry != kFree) at = (at + 1) & mask;
    places_[at] = place;
  }
  void Grow() {
    std::vector<Place> old(std::max<size_t>(16, 2 * places_.size()));
    old.swap(places_);
    for (const Place& p : old) {
      if (p.entry != kFree) Insert(p);
    }
  }

  std::vector<Place> places_;      // a power of two, or none
  StableVector<Entry> pool_;
  std::vector<uint32_t> free_;     // of the pool
  size_t size_ = 0;
};

}  // namespace tidepool::scheduler
