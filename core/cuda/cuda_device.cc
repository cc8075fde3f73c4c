#include "core/cuda/cuda_device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "core/cuda/kernels/few_rows_multiply.h"
#include "core/cuda/kernels/product_chain.h"

namespace tidepool::cuda {
namespace {

// A plan with the memory that it stands in.
struct HeldAttention : AttentionOnDevice {
  std::shared_ptr<device::Buffer> memory;
};

bool Several(std::span<const int32_t> lengths) {
  return std::ranges::any_of(lengths, [](int32_t length) { return length > kPartitionKeys; });
}

// A plan for decode in words that another one of as many rows can take. Its launches are those of a full one:
// blocks without rows to attend return at once.
class RoomForAttention : public device::GraphAttention {
 public:
  explicit RoomForAttention(const device::RowRunsOfHost& keys) {
    rows_.resize(keys.lengths.size());
    std::iota(rows_.begin(), rows_.end(), 0);
    const DecodePlan& plan = PlanOf(keys);
    work_.rows_apart = true;
    work_.decode.rows = static_cast<int64_t>(keys.lengths.size());
    work_.decode.several = Several(keys.lengths);
    work_.decode.items = Room(static_cast<int64_t>(plan.items.size()));
    work_.decode.partials = Room(plan.partials);
  }
  [[nodiscard]] const device::AttentionWork& work() const override { return work_; }
  [[nodiscard]] int64_t words() const override { return at_items() + kItemWords * work_.decode.items; }
  void Place(const int32_t* words) override {
    DecodeWork& w = work_.decode;
    w.row = words;
    w.first_partial = words + w.rows;
    w.order = words + 2 * w.rows;
    w.item = reinterpret_cast<const AttentionItem*>(words + at_items());
  }
  bool Divide(const device::RowRunsOfHost& keys, std::span<int32_t> words) override {
    const DecodeWork& w = work_.decode;
    const DecodePlan& plan = PlanOf(keys);
    if (static_cast<int64_t>(plan.items.size()) > w.items || plan.partials > w.partials ||
        (!w.several && Several(keys.lengths))) {
      return false;
    }
    std::ranges::fill(words, 0);
    std::iota(words.begin(), words.begin() + w.rows, 0);
    std::ranges::copy(plan.first_partial, words.begin() + w.rows);
    std::ranges::copy(plan.order, words.begin() + 2 * w.rows);
    std::memcpy(words.data() + at_items(), plan.items.data(), plan.items.size() * sizeof(AttentionItem));
    return true;
  }

 private:
  static constexpr int64_t kItemWords = sizeof(AttentionItem) / sizeof(int32_t);
  // For sequences that grow by two partitions, and for longer ones in their place. The sums of a partition
  // are the largest part of a kernel's scratch, so no more (core/model/memory_use.cc).
  [[nodiscard]] int64_t Room(int64_t n) const { return n + n / 4 + 2 * work_.decode.rows; }
  const DecodePlan& PlanOf(const device::RowRunsOfHost& keys) {
    return planner_.Plan(rows_, keys.first_run, keys.lengths, keys.runs);
  }
  [[nodiscard]] int64_t at_items() const { return 2 * work_.decode.rows + work_.decode.partials; }

  AttentionOnDevice work_;
  std::vector<int32_t> rows_;
  DecodePlanner planner_;
};

template <typename Args>
constexpr bool kIsMultiply = false;
template <typename T>
constexpr bool kIsMultiply<device::MultiplyArgs<T>> = true;
template <typename Args>
constexpr bool kIsLogProb = false;
template <typename T>
constexpr bool kIsLogProb<device::TokenLogProbArgs<T>> = true;

}  // namespace

class CudaDevice::DeviceLauncher : public Launcher {
 public:
  DeviceLauncher(CudaDevice& device, Stream stream)
      : device_(device), stream_(stream), scratch_(device.scratch_) {}
  [[nodiscard]] Stream stream() override { return stream_; }
  void* Scratch(int64_t bytes) override {
    constexpr int64_t kStep = int64_t{1} << 20;  // a plan that grows by a row takes no new memory
    if (scratch_.memory == nullptr || scratch_.memory->bytes() < bytes) {
      scratch_.Drop();  // what is too small goes first; graphs that work in it are not launched any more
      scratch_.memory = device_.NeedUnset((bytes + kStep - 1) / kStep * kStep);
    }
    return scratch_.memory->data();
  }
  uint64_t* Meetings() override {
    if (device_.meetings_ == nullptr) device_.meetings_ = device_.Need(2 * sizeof(uint64_t));
    return static_cast<uint64_t*>(device_.meetings_->data());
  }

 private:
  CudaDevice& device_;
  Stream stream_;
  CudaDevice::Scratch& scratch_;
};

CudaDevice::CudaDevice(c10::Device device, CudaDeviceOptions options)
    : TorchDevice(device, device::ProductOperands::kNarrow), device_(device), options_(options) {}
CudaDevice::~CudaDevice() = default;

std::string CudaDevice::name() const { return "cuda " + std::to_string(device_.index()); }

void CudaDevice::ReleaseScratch() { scratch_.Drop(); }
int64_t CudaDevice::scratch_bytes() const {
  return scratch_.memory == nullptr ? 0 : scratch_.memory->bytes();
}

template <typename F>
void CudaDevice::Run(const char* kernel, F launch) {
  const c10::DeviceGuard guard(device_);
  DeviceLauncher launcher(
      *this, device_.is_cpu()
                 ? nullptr
                 : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).native_handle());
  const int code = launch(static_cast<Launcher&>(launcher));
  // Some kernels add to what is there, so one of which a part may have run is not tried again.
  constexpr int kNoMemory = 2;  // cudaErrorMemoryAllocation
  if (code == kNoMemory)
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__},
                                name() + " has no memory to launch " + kernel);
  TP_CHECK(code == 0) << name() << ", " << kernel << ": " << ErrorText(code);
}

std::unique_ptr<device::AttentionWork> CudaDevice::PlanAttention(const device::RowRunsOfHost& keys,
                                                                 const device::HeadShape& shape) {
  const RowsByPass rows = DivideRows(keys.first_run, options_.batch_invariant);
  const DecodePlan& decode = planner_.Plan(rows.decode, keys.first_run, keys.lengths, keys.runs);
  const std::vector<AttentionItem> prefill =
      PlanPrefill(rows.prefill, keys.first_run, keys.lengths, PrefillRows(shape.heads, shape.kv_heads));
  device::Parcel parcel;
  const int64_t row = parcel.Add(rows.decode), item = parcel.Add(decode.items),
                order = parcel.Add(decode.order), first_partial = parcel.Add(decode.first_partial),
                prefill_item = parcel.Add(prefill);
  parcel.Send(*this);
  auto work = std::make_unique<HeldAttention>();
  work->memory = parcel.memory();
  work->decode = {.rows = static_cast<int64_t>(rows.decode.size()),
                  .items = static_cast<int64_t>(decode.items.size()),
                  .partials = decode.partials,
                  .several = Several(keys.lengths),
                  .row = parcel.At<int32_t>(row),
                  .item = parcel.At<AttentionItem>(item),
                  .order = parcel.At<int32_t>(order),
                  .first_partial = parcel.At<int32_t>(first_partial)};
  work->prefill = {.items = static_cast<int64_t>(prefill.size()),
                   .item = parcel.At<AttentionItem>(prefill_item)};
  return work;
}

std::unique_ptr<device::GraphAttention> CudaDevice::PlanGraphAttention(const device::RowRunsOfHost& keys,
                                                                       const device::HeadShape&) {
  return std::make_unique<RoomForAttention>(keys);
}

std::unique_ptr<device::AttentionWork> CudaDevice::PlanAttentionBackward(
    const device::RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>> ranges,
    const device::HeadShape& shape) {
  auto work = std::make_unique<HeldAttention>();
  work->ranges.assign(ranges.begin(), ranges.end());
  if (shape.dtype != DType::kBFloat16 || !HasTiles(shape.head_size)) return work;
  const BackwardPlan plan = PlanBackward(ranges, keys.first_run, keys.lengths, keys.runs);
  device::Parcel parcel;
  const int64_t query_block = parcel.Add(plan.queries.blocks), query_step = parcel.Add(plan.queries.steps),
                key_block = parcel.Add(plan.keys.blocks), key_step = parcel.Add(plan.keys.steps),
                mask = parcel.Add(plan.masks);
  parcel.Send(*this);
  work->memory = parcel.memory();
  work->backward = {.queries = {.blocks = static_cast<int64_t>(plan.queries.blocks.size()),
                                .block = parcel.At<BackwardBlock>(query_block),
                                .step = parcel.At<BackwardStep>(query_step)},
                    .keys = {.blocks = static_cast<int64_t>(plan.keys.blocks.size()),
                             .block = parcel.At<BackwardBlock>(key_block),
                             .step = parcel.At<BackwardStep>(key_step)},
                    .tiles = static_cast<int64_t>(plan.tiles.size()),
                    .mask = parcel.At<uint64_t>(mask)};
  return work;
}

bool CudaDevice::Gather(const device::FusedMultiplyArgs<BF16>& a) {
  if (!gathering_) return false;
  const c10::DeviceGuard guard(device_);
  const bool taken = !options_.batch_invariant && TakesInChain(a);
  if (!taken || gathered_.size() == kChainMax ||
      (!gathered_.empty() && gathered_.front().multiply.rows != a.multiply.rows))
    LaunchGathered();
  if (taken) gathered_.push_back(a);
  return taken;
}
void CudaDevice::LaunchGathered() {
  const std::vector<device::FusedMultiplyArgs<BF16>> products = std::exchange(gathered_, {});
  if (products.size() > 1)
    return Run("ProductChain", [&](Launcher& launcher) { return ProductChain(products, launcher); });
  const bool gathering = std::exchange(gathering_, false);
  if (!products.empty()) MultiplyNow(products.front());
  gathering_ = gathering;
}

void CudaDevice::FusedMultiply(const device::FusedMultiplyArgs<BF16>& a) {
  if (!Gather(a)) MultiplyNow(a);
}
void CudaDevice::MultiplyNow(const device::FusedMultiplyArgs<BF16>& a) {
  const c10::DeviceGuard guard(device_);  // what a kernel takes depends on the GPU
  const bool few = !options_.batch_invariant && TakesFewRows(a.multiply) &&
                   (a.glu.rows == 0 || TakesGate(a.glu)),
             norm = a.norm.rows > 0 && few && TakesNorm(a.norm, a.multiply);
  if (!few) return TorchDevice::FusedMultiply(a);
  device::FusedMultiplyArgs<BF16> left = a;
  if (a.norm.rows > 0 && !norm) {
    RmsNorm(a.norm);
    left.norm = {};
  }
  Run("FusedMultiply", [&](Launcher& launcher) { return FewRowsFused(left, launcher.stream()); });
}
void CudaDevice::RotaryAttention(const device::RotaryArgs<BF16>& turn, const device::AttentionArgs<BF16>& a) {
  LaunchGathered();
  const c10::DeviceGuard guard(device_);
  if (!RotatesInAttention(turn, a)) return TorchDevice::RotaryAttention(turn, a);
  Run("RotaryAttention", [&](Launcher& launcher) { return cuda::RotaryAttention(turn, a, launcher); });
}

// What parts of a model ask for: some terms of a product, unrounded; log-probabilities of some columns.
template <typename Args>
bool CudaDevice::OfAPart(const Args& a) {
  bool is = false;
  if constexpr (kIsMultiply<Args>) is = a.sums != nullptr;
  if constexpr (kIsLogProb<Args>) is = a.top != nullptr;
  if (is) LaunchGathered();
  return is;
}

// A product of few rows is ours, others are LibTorch's, unless a row has to have the same bits in every
// batch.
template <typename Args>
bool CudaDevice::MultiplyFewRows(const Args& a) {
  if constexpr (std::is_same_v<Args, device::MultiplyArgs<BF16>>) {
    if (Gather({.multiply = a})) return true;
    const c10::DeviceGuard guard(device_);
    if (options_.batch_invariant || !TakesFewRows(a)) return false;
    Run("Multiply", [&](Launcher& launcher) { return FewRowsFused({.multiply = a}, launcher.stream()); });
    return true;
  }
  LaunchGathered();
  return false;
}

#define TIDEPOOL_KERNEL(Kernel, Args)                                                             \
  void CudaDevice::Kernel(const device::Args& a) {                                                \
    if (OfAPart(a)) return TorchDevice::Kernel(a);                                                \
    if (MultiplyFewRows(a)) return;                                                               \
    if constexpr (kHasKernel<device::Args>) {                                                     \
      if (!kIsMultiply<device::Args> || options_.batch_invariant)                                 \
        return Run(#Kernel, [&](Launcher& launcher) { return cuda::Kernel(a, launcher); });       \
    }                                                                                             \
    if constexpr (!kHasKernel<device::Args> || kIsMultiply<device::Args>) TorchDevice::Kernel(a); \
  }
TIDEPOOL_EVERY_KERNEL
#undef TIDEPOOL_KERNEL

}  // namespace tidepool::cuda
