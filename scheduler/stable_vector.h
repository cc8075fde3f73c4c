#pragma once
// A vector whose elements never move: references stay valid until clear(). Each block is twice as large as
// the one before, so there are a few of them only, and where they are is part of the vector itself: one
// access of memory less than through a list. Room that is not used yet is not touched either. Not
// thread-safe.

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

namespace tidepool::scheduler {

template <typename T>
class StableVector {
 public:
  StableVector() = default;
  StableVector(const StableVector&) = delete;
  StableVector& operator=(const StableVector&) = delete;
  StableVector(StableVector&& other) noexcept { *this = std::move(other); }
  StableVector& operator=(StableVector&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~StableVector() { clear(); }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // requires i < size().
  [[nodiscard]] T& operator[](size_t i) { return *At(i); }
  [[nodiscard]] const T& operator[](size_t i) const { return *At(i); }
  // To at least `size`; the new ones are T{}.
  void Grow(size_t size) {
    for (; size_ < size; ++size_) {
      const size_t block = BlockOf(size_);
      if (blocks_[block] == nullptr) blocks_[block] = std::allocator<T>().allocate(kFirst << block);
      std::construct_at(At(size_));
    }
  }
  void clear() {
    while (size_ > 0) std::destroy_at(At(--size_));
    for (size_t block = 0; block < kBlocks; ++block) {
      if (blocks_[block] != nullptr)
        std::allocator<T>().deallocate(std::exchange(blocks_[block], nullptr), kFirst << block);
    }
  }

 private:
  static constexpr size_t kFirst = 8, kBlocks = 33;  // of 2^36 elements
  static size_t BlockOf(size_t i) { return static_cast<size_t>(std::bit_width((i + kFirst) / (2 * kFirst))); }
  [[nodiscard]] T* At(size_t i) const {
    const size_t block = BlockOf(i);
    return blocks_[block] + (i + kFirst - (kFirst << block));
  }
  std::array<T*, kBlocks> blocks_{};
  size_t size_ = 0;
};

}  // namespace tidepool::scheduler
