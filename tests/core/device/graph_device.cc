#include "tests/core/device/graph_device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace tidepool::device {

class GraphDevice::Recorded : public Graph {
 public:
  explicit Recorded(Kernels kernels) : kernels_(std::move(kernels)) {}
  void Launch() override {
    for (const auto& kernel : kernels_) kernel();
  }

 private:
  Kernels kernels_;
};

// In place of the division itself, memory has its number.
struct GraphDevice::Divided : AttentionWork {
  std::map<int32_t, std::unique_ptr<AttentionWork>> by_number;
  const int32_t* at = nullptr;
};

class GraphDevice::Attended : public GraphAttention {
 public:
  Attended(CheckedDevice& device, const HeadShape& shape, int64_t rows, int64_t keys)
      : device_(device), shape_(shape), rows_(rows), room_(keys) {}
  [[nodiscard]] int64_t words() const override { return 1; }
  void Place(const int32_t* words) override { divided_.at = words; }
  [[nodiscard]] const AttentionWork& work() const override { return divided_; }
  bool Divide(const RowRunsOfHost& keys, std::span<int32_t> words) override {
    TP_CHECK(static_cast<int64_t>(keys.lengths.size()) == rows_ && words.size() == 1);
    int64_t sum = 0;
    for (const int32_t length : keys.lengths) sum += length;
    if (sum > room_) return false;
    words[0] = ++last_;
    divided_.by_number.erase(last_ - 2);
    divided_.by_number[last_] = device_.PlanAttention(keys, shape_);
    return true;
  }

 private:
  CheckedDevice& device_;
  const HeadShape shape_;
  const int64_t rows_, room_;
  int32_t last_ = 0;
  Divided divided_;
};

class GraphDevice::Recorder : public Recording {
 public:
  explicit Recorder(GraphDevice& device) : device_(device) { device_.CheckNotRecording("Record"); }
  ~Recorder() override { device_.recording_ = nullptr; }
  void Begin() override { device_.recording_ = &kernels_; }
  std::unique_ptr<Graph> End() override {
    if (device_.no_memory_for_graphs)
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no memory for a graph");
    return std::make_unique<Recorded>(std::move(kernels_));
  }

 private:
  GraphDevice& device_;
  Kernels kernels_;
};
std::unique_ptr<Recording> GraphDevice::NewRecording() { return std::make_unique<Recorder>(*this); }

std::unique_ptr<GraphAttention> GraphDevice::PlanGraphAttention(const RowRunsOfHost& keys,
                                                                const HeadShape& shape) {
  int64_t sum = 0;
  for (const int32_t length : keys.lengths) sum += length;
  return std::make_unique<Attended>(*this, shape, static_cast<int64_t>(keys.lengths.size()), sum + sum / 2);
}

const AttentionWork* GraphDevice::Now(const AttentionWork* work) {
  const auto* divided = dynamic_cast<const Divided*>(work);
  if (divided == nullptr) return work;
  int32_t number = 0;  // the kernel reads it, not the host
  CheckedDevice::Download(&number, divided->at, sizeof(number));
  const auto found = divided->by_number.find(number);
  TP_CHECK(found != divided->by_number.end()) << "a graph reads a division that nobody uploaded";
  return found->second.get();
}

void GraphDevice::CheckNotRecording(const char* call) const {
  TP_CHECK(recording_ == nullptr) << call << " while kernels are recorded";
}
StatusOr<std::shared_ptr<Buffer>> GraphDevice::Allocate(int64_t bytes) {
  CheckNotRecording("Allocate");
  return CheckedDevice::Allocate(bytes);
}
void GraphDevice::Upload(void* to, const void* from_host, int64_t bytes) {
  CheckNotRecording("Upload");
  CheckedDevice::Upload(to, from_host, bytes);
}
void GraphDevice::Download(void* to_host, const void* from, int64_t bytes) {
  CheckNotRecording("Download");
  CheckedDevice::Download(to_host, from, bytes);
}
void GraphDevice::Copy(void* to, const void* from, int64_t bytes) {
  CheckNotRecording("Copy");
  CheckedDevice::Copy(to, from, bytes);
}
void GraphDevice::Zero(void* to, int64_t bytes) {
  CheckNotRecording("Zero");
  CheckedDevice::Zero(to, bytes);
}
void GraphDevice::Synchronize() {
  CheckNotRecording("Synchronize");
  CheckedDevice::Synchronize();
}

}  // namespace tidepool::device
