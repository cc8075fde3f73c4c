#include "core/cuda/capturing_device.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <string_view>
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
  std::shared_ptr<const at::cuda::MempoolId_t> pool;  // alive as long as `graph`
  at::cuda::CUDAGraph graph;

 private:
  const c10::Device device_;
};

}  // namespace

class CapturingDevice::Capture : public device::Recording {
 public:
  // The stream of everything else is the default one, which cannot be captured, and this one waits for it
  // only where it is told to. Kernels run here once before, for what happens on a first call alone: code that
  // is loaded, memory of cuBLAS and of our kernels.
  explicit Capture(CapturingDevice& device)
      : device_(device), guard_(*device.stream_), graph_(std::make_unique<CapturedGraph>(device.gpu())) {
    device.GatherProducts();
  }
  ~Capture() override {
    try {
      device_.GatherNoMore();
      if (std::exchange(device_.capturing_, false)) graph_->graph.capture_end();
      device_.Synchronize();  // the default stream goes on
    } catch (const c10::Error&) {
      // What was wrong is already on its way to the caller; the stream is out of its capture either way.
    }
  }
  void HaveRun() override { device_.LaunchGathered(); }
  void Begin() override {
    device_.Synchronize();
    graph_->pool = device_.pool_.lock();
    if (graph_->pool == nullptr) {
      graph_->pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
      device_.pool_ = graph_->pool;
    }
    // Other threads go on with what no capture may do, so its rules are for this thread.
    graph_->graph.capture_begin(*graph_->pool, cudaStreamCaptureModeThreadLocal);
    device_.capturing_ = true;
  }
  std::unique_ptr<device::Graph> End() override {
    device_.LaunchGathered();
    device_.capturing_ = false;
    try {
      graph_->graph.capture_end();
    } catch (const c10::Error& e) {  // an instance takes memory of the GPU; CUDA does not say so by its type
      if (std::string_view(e.what_without_backtrace()).find("out of memory") == std::string_view::npos) throw;
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, e.what_without_backtrace());
    }
    return std::move(graph_);
  }

 private:
  CapturingDevice& device_;
  const c10::cuda::CUDAStreamGuard guard_;
  std::unique_ptr<CapturedGraph> graph_;
};

std::unique_ptr<device::Recording> CapturingDevice::NewRecording() {
  if (stream_ == nullptr) {
    stream_ = std::make_unique<c10::cuda::CUDAStream>(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, gpu().index()));
  }
  Synchronize();
  return std::make_unique<Capture>(*this);
}

std::optional<int64_t> CapturingDevice::free_bytes() {
  return capturing_ ? std::nullopt : CudaDevice::free_bytes();
}

}  // namespace tidepool::cuda
