#include "core/cuda/capturing_device.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace tidepool::cuda {
namespace {

class CapturedGraph : public device::Graph {
 public:
  explicit CapturedGraph(c10::Device device) : device_(device) {}
  void Launch() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph.replay();
  }

  std::shared_ptr<device::Buffer> scratch;  // that its kernels work in; the device may take a larger one
  at::cuda::CUDAGraph graph;

 private:
  const c10::Device device_;
};

}  // namespace

std::unique_ptr<device::Graph> CapturingDevice::Record(const std::function<void()>& kernels) {
  auto made = std::make_unique<CapturedGraph>(gpu());
  if (stream_ == nullptr)
    stream_ = std::make_unique<c10::cuda::CUDAStream>(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, gpu().index()));
  // The stream of everything else is the default one, which cannot be captured, and this one waits for it
  // only where it is told to.
  Synchronize();
  const c10::cuda::CUDAStreamGuard guard(*stream_);
  // Also for what happens on a first call alone: code that is loaded, memory of cuBLAS and of our kernels.
  kernels();
  Synchronize();
  made->scratch = scratch();
  // Other threads go on with what no capture may do, so its rules are for this thread.
  made->graph.capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
  kernels();
  made->graph.capture_end();
  return made;
}

}  // namespace tidepool::cuda
