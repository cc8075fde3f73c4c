#pragma once
// Bump allocator for activations: memory stays between steps, so pages are not faulted in again.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"

namespace tidepool::model {

// Not thread-safe. The device outlives it.
class ActivationArena {
 public:
  // Memory is taken in chunks of so many bytes or more.
  static constexpr int64_t kChunkBytes = int64_t{32} << 20;
  explicit ActivationArena(device::Device& device) : device_(&device) {}

  // Uninitialised, 64-byte aligned; valid until Reset().
  device::View Take(int64_t rows, int64_t cols, DType dtype);
  template <typename V>
  V* TakeArray(int64_t n) {
    return static_cast<V*>(TakeBytes(n * static_cast<int64_t>(sizeof(V))));
  }
  void Reset() { chunk_ = 0, used_ = 0; }
  struct Mark {
    size_t chunk = 0;
    int64_t used = 0;
  };
  [[nodiscard]] Mark mark() const { return {chunk_, used_}; }
  void Rewind(Mark to) { chunk_ = to.chunk, used_ = to.used; }  // frees what was taken since
  void Release() { chunks_.clear(), Reset(); }
  [[nodiscard]] int64_t bytes() const;

 private:
  void* TakeBytes(int64_t bytes);

  device::Device* device_;
  std::vector<std::shared_ptr<device::Buffer>> chunks_;
  size_t chunk_ = 0;
  int64_t used_ = 0;
};

}  // namespace tidepool::model
