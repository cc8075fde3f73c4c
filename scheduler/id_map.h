#pragma once
// A map by ids that are 0, 1, 2 ... (workers, slots): the entry is found by its place, and a walk, in the
// order of ids, goes through memory in one direction. Reads as a std::map; references stay valid until their
// entry is erased. Memory grows with the largest id, so ids are below kMostIds. Not thread-safe.

#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "scheduler/stable_vector.h"

namespace tidepool::scheduler {

template <typename Id, typename T>
class IdMap {
  using Item = std::pair<const Id, T>;
  using Items = StableVector<std::optional<Item>>;
  template <bool is_const>
  class Walk {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Item;
    using difference_type = std::ptrdiff_t;
    using reference = std::conditional_t<is_const, const Item&, Item&>;
    using pointer = std::conditional_t<is_const, const Item*, Item*>;
    using Under = std::conditional_t<is_const, const Items, Items>;
    Walk() = default;
    Walk(Under* items, size_t at) : items_(items), at_(at) { Skip(); }
    reference operator*() const { return *(*items_)[at_]; }
    pointer operator->() const { return &*(*items_)[at_]; }
    Walk& operator++() {
      ++at_;
      Skip();
      return *this;
    }
    Walk operator++(int) {
      Walk was = *this;
      ++*this;
      return was;
    }
    friend bool operator==(const Walk& x, const Walk& y) { return x.at_ == y.at_; }

   private:
    void Skip() {
      while (at_ < items_->size() && !(*items_)[at_].has_value()) ++at_;
    }
    Under* items_ = nullptr;
    size_t at_ = 0;
  };

 public:
  IdMap() = default;
  IdMap(const IdMap& other) {
    for (const auto& [id, x] : other) Insert(id, x);
  }
  IdMap(IdMap&& other) noexcept : items_(std::move(other.items_)), size_(std::exchange(other.size_, 0)) {}
  IdMap& operator=(IdMap other) noexcept {
    std::swap(items_, other.items_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~IdMap() = default;
  static constexpr int64_t kMostIds = 1 << 20;
  using iterator = Walk<false>;
  using const_iterator = Walk<true>;

  [[nodiscard]] iterator begin() { return {&items_, 0}; }
  [[nodiscard]] iterator end() { return {&items_, items_.size()}; }
  [[nodiscard]] const_iterator begin() const { return {&items_, 0}; }
  [[nodiscard]] const_iterator end() const { return {&items_, items_.size()}; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }

  // nullptr: not there.
  [[nodiscard]] T* Find(Id id) { return contains(id) ? &items_[Place(id)]->second : nullptr; }
  [[nodiscard]] const T* Find(Id id) const { return contains(id) ? &items_[Place(id)]->second : nullptr; }
  [[nodiscard]] iterator find(Id id) { return contains(id) ? iterator(&items_, Place(id)) : end(); }
  [[nodiscard]] const_iterator find(Id id) const {
    return contains(id) ? const_iterator(&items_, Place(id)) : end();
  }
  [[nodiscard]] bool contains(Id id) const {
    return Place(id) < items_.size() && items_[Place(id)].has_value();
  }
  [[nodiscard]] T& at(Id id) {
    TP_CHECK(contains(id)) << id.value;
    return items_[Place(id)]->second;
  }
  [[nodiscard]] const T& at(Id id) const { return const_cast<IdMap*>(this)->at(id); }

  // requires: not there, and 0 <= id < kMostIds.
  T& Insert(Id id, T value) {
    TP_CHECK(id.value >= 0 && id.value < kMostIds) << id.value;
    TP_CHECK(!contains(id)) << id.value;
    items_.Grow(Place(id) + 1);
    ++size_;
    return items_[Place(id)].emplace(id, std::move(value)).second;
  }
  T& operator[](Id id) {
    T* there = Find(id);
    return there != nullptr ? *there : Insert(id, T{});
  }
  size_t erase(Id id) {
    if (!contains(id)) return 0;
    items_[Place(id)].reset();
    --size_;
    return 1;
  }
  void clear() {
    items_.clear();
    size_ = 0;
  }

 private:
  static size_t Place(Id id) { return static_cast<size_t>(id.value); }  // below 0: beyond any
  Items items_;
  size_t size_ = 0;
};

}  // namespace tidepool::scheduler
