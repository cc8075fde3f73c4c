#include "tests/core/cuda/emulated_device.h"

#include <algorithm>
#include <utility>

#include "core/cuda/device_code.h"

namespace tidepool::cuda {
namespace {

class Registered : public device::Buffer {
 public:
  Registered(std::shared_ptr<device::Buffer> memory, std::shared_ptr<std::atomic<int64_t>> held)
      : Buffer(memory->data(), memory->bytes()), memory_(std::move(memory)), held_(std::move(held)) {
    *held_ += bytes();
    emulation::AddMemory(data(), std::max<int64_t>(bytes(), 1), /*unit=*/2, /*written=*/true);
  }
  ~Registered() override {
    emulation::RemoveMemory(data());
    *held_ -= bytes();
  }

 private:
  std::shared_ptr<device::Buffer> memory_;
  std::shared_ptr<std::atomic<int64_t>> held_;
};

}  // namespace

StatusOr<std::shared_ptr<device::Buffer>> EmulatedCudaDevice::Allocate(int64_t bytes) {
  if (*held_ + bytes > std::min(memory_bytes_, gives_bytes_))
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes on " + name() + ", where " +
                             std::to_string(*free_bytes()) + " are free");
  TP_ASSIGN_OR_RETURN(std::shared_ptr<device::Buffer> memory, CudaDevice::Allocate(bytes));
  return std::shared_ptr<device::Buffer>(std::make_shared<Registered>(std::move(memory), held_));
}

}  // namespace tidepool::cuda
