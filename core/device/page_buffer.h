#pragma once
// Large zeroed memory straight from the system: pages cost nothing until they are written, are
// given back at once, and are huge where the kernel allows it (fewer TLB misses in one-pass sweeps
// over optimizer state). Not thread-safe.

#include <cstddef>
#include <span>

#include "core/base/status.h"

namespace tidepool::device {

class PageBuffer {
 public:
  PageBuffer() = default;
  // kResourceExhausted if the system has no such range.
  static StatusOr<PageBuffer> Create(size_t bytes);
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();

  // Gives the pages back to the system; the range stays and reads as zeros.
  void Discard();

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
  template <typename T>
  [[nodiscard]] std::span<T> As() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tidepool::device
