#include "tests/core/cuda/emulated_device.h"

#include <algorithm>
#include <utility>

#include "core/cuda/device_code.h"

namespace tidepool::cuda {
namespace {

class Registered : public device::Buffer {
 public:
  explicit Registered(std::shared_ptr<device::Buffer> memory)
      : Buffer(memory->data(), memory->bytes()), memory_(std::move(memory)) {
    emulation::AddMemory(data(), std::max<int64_t>(bytes(), 1), /*unit=*/2, /*written=*/true);
  }
  ~Registered() override { emulation::RemoveMemory(data()); }

 private:
  std::shared_ptr<device::Buffer> memory_;
};

}  // namespace

StatusOr<std::shared_ptr<device::Buffer>> EmulatedCudaDevice::Allocate(int64_t bytes) {
  TP_ASSIGN_OR_RETURN(std::shared_ptr<device::Buffer> memory, CudaDevice::Allocate(bytes));
  return std::shared_ptr<device::Buffer>(std::make_shared<Registered>(std::move(memory)));
}

}  // namespace tidepool::cuda
