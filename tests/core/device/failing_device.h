#pragma once
// A device whose copies throw what a test wants, as those of one that has failed do.

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>

namespace tidepool::device {

template <typename Base>
struct FailingDevice : Base {
  using Base::Upload;
  void Upload(void* to, const void* from, int64_t bytes) override {
    if (fail) fail();
    Base::Upload(to, from, bytes);
  }
  std::function<void()> fail;
};

inline void ThrowAsLibTorchDoes() {
  throw c10::Error({__func__, __FILE__, __LINE__}, "CUDA error: an illegal memory access was encountered");
}

}  // namespace tidepool::device
