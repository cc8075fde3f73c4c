#pragma once
// A vector whose elements never move: references stay valid until clear(). Each block is twice as large as the one before,
// so the list of blocks stays in the nearest cache, where a std::deque of 65 536 large elements needs a list of as many pointers.
// Elements of a block are made with it, by T{}. Not thread-safe.

#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tidepool::scheduler {

template <typename T>
class StableVector {
 public:
  StableVector() = default;
  StableVector(const StableVector&) = delete;
  StableVector& operator=(const StableVector&) = delete;
  StableVector(StableVector&& other) noexcept : blocks_(std::move(other.blocks_)), size_(std::exchange(other.size_, 0)) { other.blocks_.clear(); }
  StableVector& operator=(StableVector&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // requires i < size().
  [[nodiscard]] T& operator[](size_t i) { return Of(i); }
  [[nodiscard]] const T& operator[](size_t i) const { return Of(i); }
  // To at least `size`; the new ones are T{}.
  void Grow(size_t size) {
    if (size <= size_) return;
    while (blocks_.size() < BlockOf(size - 1) + 1) blocks_.push_back(std::make_unique<T[]>(kFirst << blocks_.size()));
    size_ = size;
  }
  void clear() {
    blocks_.clear();
    size_ = 0;
  }

 private:
  static constexpr size_t kFirst = 8;
  static size_t BlockOf(size_t i) { return static_cast<size_t>(std::bit_width((i + kFirst) / kFirst) - 1); }
  [[nodiscard]] T& Of(size_t i) const {
    const size_t block = BlockOf(i);
    return blocks_[block][i + kFirst - (kFirst << block)];
  }
  std::vector<std::unique_ptr<T[]>> blocks_;
  size_t size_ = 0;
};

}  // namespace tidepool::scheduler
