#include "core/device/device.h"

#include <c10/util/Exception.h>

namespace tidepool::device {

namespace {

std::shared_ptr<Buffer> OrThrow(StatusOr<std::shared_ptr<Buffer>> memory) {
  if (!memory.ok()) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, memory.status().message());
  return std::move(memory).value();
}

}  // namespace

std::shared_ptr<Buffer> Device::Need(int64_t bytes) { return OrThrow(Allocate(bytes)); }
std::shared_ptr<Buffer> Device::NeedUnset(int64_t bytes) { return OrThrow(AllocateUnset(bytes)); }

Array Device::Take(int64_t rows, int64_t cols, DType dtype) {
  View view{.rows = rows, .cols = cols, .dtype = dtype};
  std::shared_ptr<Buffer> memory = Need(view.bytes());
  view.data = memory->data();
  return {std::move(memory), view};
}

void Device::LayOut(const View&, void*) { TP_CHECK(false) << name() << " takes matrices as they are"; }

std::unique_ptr<Graph> Device::Record(const std::function<void()>& kernels) {
  const std::unique_ptr<Recording> recording = NewRecording();
  kernels();
  recording->HaveRun();
  try {
    recording->Begin();
    kernels();
    return recording->End();
  } catch (const c10::OutOfMemoryError&) {  // the caller goes on without the graph: its kernels have run
    return nullptr;
  }
}
std::unique_ptr<Recording> Device::NewRecording() {
  TP_CHECK(false) << name() << " has no graphs";
  return nullptr;
}
std::unique_ptr<GraphAttention> Device::PlanGraphAttention(const RowRunsOfHost&, const HeadShape&) {
  TP_CHECK(false) << name() << " has no graphs";
  return nullptr;
}

}  // namespace tidepool::device
