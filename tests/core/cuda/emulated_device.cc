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
    emulation::AddMemory(data(), std::max<int64_t>(bytes(), 1), /*unit=*/2, /*written=*/true,
                         /*settled=*/true);
  }
  ~Registered() override {
    emulation::RemoveMemory(data());
    *held_ -= bytes();
  }

 private:
  std::shared_ptr<device::Buffer> memory_;
  std::shared_ptr<std::atomic<int64_t>> held_;
};

class RecordedLaunches : public device::Graph {
 public:
  explicit RecordedLaunches(emulation::Launches launches) : launches_(std::move(launches)) {}
  void Launch() override {
    emulation::Synchronize();  // a graph begins when all before it has ended
    for (const auto& launch : launches_) {
      const int code = launch();
      TP_CHECK(code == 0) << "a graph: " << LaunchError(code);
    }
  }

 private:
  emulation::Launches launches_;
};

// What the host asks for beside kernels: the stream does it when those before have ended.
void BetweenKernels(const char* call) {
  TP_CHECK(emulation::Recording() == nullptr) << call << " while kernels are recorded";
  emulation::Synchronize();
}

}  // namespace

class EmulatedCudaDevice::LaunchRecorder : public device::Recording {
 public:
  explicit LaunchRecorder(EmulatedCudaDevice& device) : device_(device) { device.GatherProducts(); }
  ~LaunchRecorder() override {
    device_.GatherNoMore();
    emulation::RecordInto(nullptr);
  }
  void HaveRun() override { device_.LaunchGathered(); }
  void Begin() override { emulation::RecordInto(&launches_); }
  std::unique_ptr<device::Graph> End() override {
    device_.LaunchGathered();
    return std::make_unique<RecordedLaunches>(std::move(launches_));
  }

 private:
  EmulatedCudaDevice& device_;
  emulation::Launches launches_;
};

std::unique_ptr<device::Recording> EmulatedCudaDevice::NewRecording() {
  return std::make_unique<LaunchRecorder>(*this);
}
void EmulatedCudaDevice::RunOrKeep(std::function<void()> kernel, Output output) {
  const auto run = [kernel = std::move(kernel), output] {
    const int64_t launches = emulation::Totals().launches;
    kernel();
    // None of ours, so LibTorch has done it.
    if (emulation::Totals().launches == launches) emulation::Wrote(output.begin, output.bytes);
    return 0;
  };
  if (emulation::Recording() == nullptr) {
    run();
  } else {
    emulation::Recording()->push_back(run);
  }
}
void EmulatedCudaDevice::Upload(void* to, const void* from_host, int64_t bytes) {
  BetweenKernels("Upload");
  TorchDevice::Upload(to, from_host, bytes);
}
void EmulatedCudaDevice::Download(void* to_host, const void* from, int64_t bytes) {
  BetweenKernels("Download");
  CudaDevice::Download(to_host, from, bytes);
}
void EmulatedCudaDevice::Copy(void* to, const void* from, int64_t bytes) {
  BetweenKernels("Copy");
  CudaDevice::Copy(to, from, bytes);
}
void EmulatedCudaDevice::Zero(void* to, int64_t bytes) {
  BetweenKernels("Zero");
  CudaDevice::Zero(to, bytes);
}
void EmulatedCudaDevice::Synchronize() { BetweenKernels("Synchronize"); }

StatusOr<std::shared_ptr<device::Buffer>> EmulatedCudaDevice::Allocate(int64_t bytes) {
  BetweenKernels("Allocate");
  if (*held_ + bytes > std::min(memory_bytes_, gives_bytes_))
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes on " + name() + ", where " +
                             std::to_string(*free_bytes()) + " are free");
  TP_ASSIGN_OR_RETURN(std::shared_ptr<device::Buffer> memory, CudaDevice::Allocate(bytes));
  return std::shared_ptr<device::Buffer>(std::make_shared<Registered>(std::move(memory), held_));
}

}  // namespace tidepool::cuda
