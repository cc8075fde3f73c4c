#include "core/device/device.h"

namespace tidepool::device {

Array Device::Take(int64_t rows, int64_t cols, DType dtype) {
  View view{.rows = rows, .cols = cols, .dtype = dtype};
  StatusOr<std::shared_ptr<Buffer>> memory = Allocate(view.bytes());
  TP_CHECK(memory.ok()) << memory.status().ToString();
  view.data = (*memory)->data();
  return {std::move(memory).value(), view};
}

void Device::LayOut(const View&, void*) { TP_CHECK(false) << name() << " takes matrices as they are"; }

std::unique_ptr<Graph> Device::Record(const std::function<void()>&) {
  TP_CHECK(false) << name() << " has no graphs";
  return nullptr;
}
std::unique_ptr<GraphAttention> Device::PlanGraphAttention(const RowRunsOfHost&, const HeadShape&) {
  TP_CHECK(false) << name() << " has no graphs";
  return nullptr;
}

}  // namespace tidepool::device
