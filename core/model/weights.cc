#include "core/model/weights.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/device/cpu/kernels.h"
#include "core/device/page_buffer.h"

namespace tidepool::model {
struct Weights::Impl {
  ModelSpec spec;
  DType dtype = DType::kFloat32;
  std::vector<Parameter> layout;
  int64_t elements = 0;
  device::PageBuffer owned;
  std::span<std::byte> arena;
  std::vector<bool> in_strips;  // by parameter; empty: the arena is not laid out
  uint64_t digest = 0;          // before it was
  int64_t overwritten = 0;      // times
  std::vector<std::weak_ptr<DeviceWeights>> on_devices;
};

Weights::Weights() : impl_(std::make_unique<Impl>()) {}
Weights::~Weights() = default;

StatusOr<std::unique_ptr<Weights>> Weights::Create(const ModelSpec& spec, DType dtype,
                                                   std::span<std::byte> arena) {
  TP_RETURN_IF_ERROR(CheckSpec(spec));
  std::unique_ptr<Weights> w(new Weights());
  w->impl_->spec = spec;
  w->impl_->dtype = dtype;
  w->impl_->layout = Layout(spec);
  w->impl_->elements = LayoutElements(spec);
  const size_t bytes = static_cast<size_t>(w->impl_->elements * Bytes(dtype));
  if (arena.data() == nullptr) {
    TP_ASSIGN_OR_RETURN(w->impl_->owned, device::PageBuffer::Create(bytes));
    w->impl_->arena = w->impl_->owned.bytes();
  } else {
    if (arena.size() < bytes) {
      return InvalidArgument("model: the arena for the weights has " + std::to_string(arena.size()) +
                             " bytes, but " + std::to_string(bytes) + " are needed");
    }
    if (reinterpret_cast<uintptr_t>(arena.data()) % 64 != 0) {
      return InvalidArgument("model: the arena for the weights is not aligned to 64 bytes");
    }
    w->impl_->arena = arena.first(bytes);
  }
  return w;
}

StatusOr<std::unique_ptr<Weights>> Weights::FromLayout(std::vector<Parameter> layout, DType dtype) {
  int64_t elements = 0;
  for (const Parameter& p : layout) {
    TP_CHECK(p.offset == elements) << p.name;
    elements += (p.numel() + 63) / 64 * 64;
  }
  std::unique_ptr<Weights> w(new Weights());
  w->impl_->dtype = dtype;
  w->impl_->layout = std::move(layout);
  w->impl_->elements = elements;
  TP_ASSIGN_OR_RETURN(w->impl_->owned,
                      device::PageBuffer::Create(static_cast<size_t>(elements * Bytes(dtype))));
  w->impl_->arena = w->impl_->owned.bytes();
  return w;
}

const ModelSpec& Weights::spec() const { return impl_->spec; }
DType Weights::dtype() const { return impl_->dtype; }
const std::vector<Parameter>& Weights::layout() const { return impl_->layout; }
int64_t Weights::elements() const { return impl_->elements; }
std::span<std::byte> Weights::bytes() {
  TP_CHECK(!laid_out()) << "these weights are laid out for products";
  return impl_->arena;
}
std::span<const std::byte> Weights::bytes() const { return const_cast<Weights*>(this)->bytes(); }

at::Tensor Weights::Get(int64_t index) const {
  TP_CHECK(index >= 0 && index < static_cast<int64_t>(impl_->layout.size())) << "parameter " << index;
  TP_CHECK(!laid_out()) << "these weights are laid out for products";
  const Parameter& p = impl_->layout[static_cast<size_t>(index)];
  return at::from_blob(
      impl_->arena.data() + p.offset * Bytes(impl_->dtype), p.shape,
      at::TensorOptions().dtype(impl_->dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16));
}

at::Tensor Weights::Get(std::string_view name) const {
  for (size_t i = 0; i < impl_->layout.size(); ++i) {
    if (impl_->layout[i].name == name) return Get(static_cast<int64_t>(i));
  }
  TP_CHECK(false) << "no parameter is called " << name;
  return {};
}

void Weights::Initialize(uint64_t seed, double init_std) {
  const Rng root = Rng(seed).Fork("weights");
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(impl_->spec.layers));
  std::memset(impl_->arena.data(), 0, impl_->arena.size());
  for (const Parameter& p : impl_->layout) {
    std::byte* base = impl_->arena.data() + p.offset * Bytes(impl_->dtype);
    // Rounded, where the arena is narrow.
    const auto put = [&](int64_t at, std::span<const float> values) {
      const auto n = static_cast<int64_t>(values.size());
      if (impl_->dtype == DType::kFloat32) {
        std::memcpy(reinterpret_cast<float*>(base) + at, values.data(), values.size_bytes());
      } else {
        device::Kernels<device::BF16>().narrow(0, n, values.data(),
                                               reinterpret_cast<device::BF16*>(base) + at);
      }
    };
    if (p.name.ends_with("_norm")) {
      put(0, std::vector<float>(static_cast<size_t>(p.numel()), 1.0F));
      continue;
    }
    if (p.name.ends_with("_bias") || p.name == "score") continue;  // zero
    const bool to_residual = p.name.ends_with(".o") || p.name.ends_with("down");
    const double std = init_std * (to_residual ? residual : 1.0);
    const Rng stream = root.Fork(p.name);
    constexpr int64_t kBlock =
        65536;  // each block has a stream of its own, so that blocks can be drawn in parallel
    const int64_t blocks = (p.numel() + kBlock - 1) / kBlock;
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        Rng rng = stream.Fork(static_cast<uint64_t>(b));
        const int64_t stop = std::min(p.numel(), (b + 1) * kBlock);
        std::vector<float> values(static_cast<size_t>(stop - b * kBlock));
        for (float& v : values) v = static_cast<float>(std * rng.Normal());
        put(b * kBlock, values);
      }
    });
  }
}

std::vector<uint64_t> Weights::BucketDigests() const {
  const std::span<const std::byte> bytes = this->bytes();
  const size_t buckets = (bytes.size() + kBucketBytes - 1) / kBucketBytes;
  constexpr size_t kPiece = size_t{1} << 20;  // a sum has no order, so pieces may be summed in parallel
  constexpr size_t kPieces = kBucketBytes / kPiece;
  std::vector<uint64_t> pieces(buckets * kPieces, 0);
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (i * kPiece >= bytes.size()) break;
      const auto piece = bytes.subspan(i * kPiece, std::min(kPiece, bytes.size() - i * kPiece));
      pieces[i] = SaltedSum(piece, /*salt=*/i / kPieces, /*first_word=*/(i % kPieces) * (kPiece / 8));
    }
  });
  std::vector<uint64_t> digests(buckets, 0);
  for (size_t i = 0; i < pieces.size(); ++i) digests[i / kPieces] += pieces[i];
  return digests;
}

uint64_t Weights::Digest() const {
  if (laid_out()) return impl_->digest;
  const std::vector<uint64_t> buckets = BucketDigests();
  return SaltedSum(std::as_bytes(std::span(buckets)), /*salt=*/buckets.size());
}

StatusOr<std::unique_ptr<Weights>> WithValueHead(const Weights& from) {
  ModelSpec spec = from.spec();
  spec.value_head = true;
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, Weights::Create(spec, from.dtype()));
  for (const Parameter& p : weights->layout()) {
    const auto same = std::find_if(from.layout().begin(), from.layout().end(),
                                   [&](const Parameter& q) { return q.name == p.name; });
    if (p.name == "score" && !from.spec().value_head) continue;  // zero, as the arena is
    TP_CHECK(same != from.layout().end()) << "no parameter is called " << p.name;
    const auto size = static_cast<size_t>(Bytes(from.dtype()));
    std::memcpy(weights->bytes().data() + static_cast<size_t>(p.offset) * size,
                from.bytes().data() + static_cast<size_t>(same->offset) * size,
                static_cast<size_t>(p.numel()) * size);
  }
  return weights;
}

namespace {

// Whether `device` lays out what products read of the parameter.
bool LaysOut(const device::Device& device, const Parameter& p, DType dtype) {
  return p.product_rows > 0 && device.lays_out(p.product_rows, p.numel() / p.shape[0], dtype);
}
device::View Matrix(void* arena, const Parameter& p, DType dtype) {
  return {static_cast<std::byte*>(arena) + p.offset * Bytes(dtype), p.shape[0], p.numel() / p.shape[0],
          dtype};
}

}  // namespace

void Weights::LayOutFor(device::Device& device, std::optional<uint64_t> digest) {
  Impl& m = *impl_;
  if (laid_out() || !device.host_memory()) return;
  std::vector<bool> in_strips;
  for (const Parameter& p : m.layout) in_strips.push_back(LaysOut(device, p, m.dtype));
  if (std::ranges::find(in_strips, true) == in_strips.end()) return;
  m.digest = digest ? *digest : Digest();
  for (size_t i = 0; i < in_strips.size(); ++i) {
    const device::View matrix = Matrix(m.arena.data(), m.layout[i], m.dtype);
    if (in_strips[i]) device.LayOut(matrix, matrix.data);
  }
  m.in_strips = std::move(in_strips);
}
bool Weights::laid_out() const { return !impl_->in_strips.empty(); }
int64_t Weights::size() const { return impl_->elements * Bytes(impl_->dtype); }
int64_t Weights::strips_bytes() const {
  int64_t sum = 0;
  for (const auto& one : impl_->on_devices) {
    if (const auto there = one.lock()) sum += there->strips_bytes();
  }
  return sum;
}
std::span<std::byte> Weights::Overwrite() {
  impl_->in_strips.clear();
  ++impl_->overwritten;
  return impl_->arena;
}

std::shared_ptr<DeviceWeights> Weights::On(const std::shared_ptr<device::Device>& device) const {
  auto& all = impl_->on_devices;
  std::erase_if(all, [](const auto& one) { return one.expired(); });
  for (const auto& one : all) {
    std::shared_ptr<DeviceWeights> there = one.lock();
    const device::Device& other = there->device();
    // Devices that compute in the host's memory share it, if they read the weights alike.
    const bool alike = other.host_memory() && device->host_memory() &&
                       std::ranges::all_of(layout(), [&](const Parameter& p) {
                         return LaysOut(other, p, dtype()) == LaysOut(*device, p, dtype());
                       });
    if (!alike && &other != device.get()) continue;
    there->Written();  // who comes new finds the arena as it is now
    return there;
  }
  auto made = std::make_shared<DeviceWeights>(*this, device);
  all.push_back(made);
  return made;
}

DeviceWeights::DeviceWeights(const Weights& host, std::shared_ptr<device::Device> device)
    : host_(host), device_(std::move(device)) {
  if (device_->host_memory()) {
    data_ = host_.impl_->arena.data();
  } else {
    copy_ = device_->Put(host.bytes());
    data_ = copy_->data();
  }
}
device::View DeviceWeights::In(void* arena, const Parameter& p) const {
  return Matrix(arena, p, host_.dtype());
}

device::View DeviceWeights::parameter(int64_t i) const {
  const auto index = static_cast<size_t>(i);
  TP_CHECK(!host_.laid_out() || !host_.impl_->in_strips[index])
      << host_.layout()[index].name << " is laid out for products";
  return In(data_, host_.layout()[index]);
}
DeviceWeights::Matrices DeviceWeights::product(int64_t i) {
  const auto index = static_cast<size_t>(i);
  const Parameter& p = host_.layout()[index];
  if (host_.laid_out()) return {In(data_, p), host_.impl_->in_strips[index]};
  if (!LaysOut(*device_, p, host_.dtype())) return {In(data_, p), false};
  if (made_of_ != host_.impl_->overwritten) MakeStrips();
  return {In(strips_->data(), p), true};
}
DeviceWeights::Matrices DeviceWeights::table(int64_t i) {
  return host_.laid_out() ? product(i) : Matrices{parameter(i), false};
}
int64_t DeviceWeights::strips_bytes() const { return strips_ == nullptr ? 0 : strips_->bytes(); }
void DeviceWeights::MakeStrips() {
  if (strips_ == nullptr) strips_ = device_->Take(1, host_.elements(), host_.dtype()).memory;
  for (const Parameter& p : host_.layout()) {
    if (LaysOut(*device_, p, host_.dtype())) device_->LayOut(In(data_, p), In(strips_->data(), p).data);
  }
  made_of_ = host_.impl_->overwritten;
}
void DeviceWeights::Upload() {
  if (copy_ != nullptr) device_->Upload(static_cast<std::byte*>(data_), host_.bytes());
  Written();
}
void DeviceWeights::Written() {
  made_of_ = -1;
  if (host_.laid_out()) strips_.reset();
}
void DeviceWeights::Download(Weights& host) const {
  TP_CHECK(&host == &host_) << "weights of a device are those of other weights of the host";
  if (copy_ != nullptr) device_->Download(host.bytes().data(), data_, copy_->bytes());
}

struct Gradients::Impl {
  device::Device& device;
  int64_t elements;
  std::shared_ptr<device::Buffer> memory;  // null: zeros
};

Gradients::Gradients(const Weights& weights, device::Device& device)
    : impl_(new Impl{.device = device, .elements = weights.elements(), .memory = nullptr}) {}
Gradients::~Gradients() = default;

float* Gradients::data() {
  Impl& m = *impl_;
  if (m.memory == nullptr) m.memory = m.device.Need(m.elements * static_cast<int64_t>(sizeof(float)));
  return static_cast<float*>(m.memory->data());
}
std::span<float> Gradients::values() { return {data(), static_cast<size_t>(impl_->elements)}; }
int64_t Gradients::elements() const { return impl_->elements; }
void Gradients::Zero() {
  if (impl_->memory != nullptr) impl_->device.Zero(impl_->memory->data(), impl_->memory->bytes());
}
void Gradients::Release() { impl_->memory = nullptr; }
int64_t Gradients::held_bytes() const { return impl_->memory == nullptr ? 0 : impl_->memory->bytes(); }

}  // namespace tidepool::model
