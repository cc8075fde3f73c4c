#include "core/model/weights.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/base/weight_pieces.h"
#include "core/device/cpu/kernels.h"
#include "core/device/cpu/salted_sums.h"
#include "core/device/page_buffer.h"
#include "core/model/peers.h"

namespace tidepool::model {
struct Weights::Impl {
  std::shared_ptr<const Weights> base;
  std::optional<AdapterSpec> adapter;
  ModelSpec spec;
  Part part;
  DType dtype = DType::kFloat32;
  std::vector<Parameter> layout;
  int64_t elements = 0;
  device::PageBuffer owned;
  std::span<std::byte> arena;
  std::vector<bool> in_strips;  // by parameter; empty: the arena is not laid out
  std::optional<BlockLayout> blocks;
  uint64_t digest = 0;      // before it was
  int64_t overwritten = 0;  // times
  bool by_parts = false;    // what is laid out beside it
  std::vector<std::weak_ptr<DeviceWeights>> on_devices;
  // What kernels have written since the arena was; null: the arena is as new as any.
  std::atomic<const DeviceWeights*> newer = nullptr;
  // Whose bytes the arena has had since they came down or went up; null where nobody's did, or somebody may
  // have written.
  std::atomic<const DeviceWeights*> same = nullptr;
  std::mutex mu;                   // of who brings it down
  std::atomic<bool> lost = false;  // it went before it was brought down
};

Weights::Weights() : impl_(std::make_unique<Impl>()) {}
Weights::~Weights() = default;

StatusOr<std::unique_ptr<Weights>> Weights::Create(const ModelSpec& spec, DType dtype,
                                                   std::span<std::byte> arena, const Part& part) {
  TP_RETURN_IF_ERROR(CheckSpec(spec));
  TP_RETURN_IF_ERROR(CheckCut(spec, part.of, part.what));
  const ModelSpec here = PartSpec(spec, part);
  std::unique_ptr<Weights> w(new Weights());
  w->impl_->spec = spec;
  w->impl_->part = part;
  w->impl_->dtype = dtype;
  w->impl_->layout = Layout(here);
  w->impl_->elements = LayoutElements(here);
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

StatusOr<std::unique_ptr<Weights>> Weights::CreateInBlocks(
    const ModelSpec& spec, DType dtype, BlockLayout blocks, std::span<std::byte> arena,
    const std::function<Status(std::span<std::byte>)>& read) {
  TP_RETURN_IF_ERROR(CheckSpec(spec));
  std::unique_ptr<Weights> w(new Weights());
  Impl& m = *w->impl_;
  m.spec = spec;
  m.dtype = dtype;
  m.layout = Layout(spec);
  m.elements = LayoutElements(spec);
  const auto bytes = static_cast<size_t>(blocks.bytes);
  if (arena.data() == nullptr) {
    TP_ASSIGN_OR_RETURN(m.owned, device::PageBuffer::Create(bytes));
    arena = m.owned.bytes();
  }
  TP_CHECK(arena.size() >= bytes && reinterpret_cast<uintptr_t>(arena.data()) % 64 == 0)
      << arena.size() << " bytes for " << bytes << " of blocks";
  m.arena = arena.first(bytes);
  if (read) TP_RETURN_IF_ERROR(read(m.arena));
  m.in_strips.assign(m.layout.size(), false);
  m.blocks = std::move(blocks);
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

StatusOr<std::unique_ptr<Weights>> Weights::Adapt(std::shared_ptr<const Weights> base,
                                                  const AdapterSpec& adapter) {
  TP_CHECK(base->part().whole() && base->base() == nullptr) << "an adapter on a part, or on an adapter";
  TP_RETURN_IF_ERROR(CheckAdapter(base->spec(), adapter));
  TP_ASSIGN_OR_RETURN(auto weights, FromLayout(AdapterLayout(base->spec(), adapter), base->dtype()));
  weights->impl_->spec = base->spec();
  weights->impl_->spec.value_head |= adapter.score;
  weights->impl_->adapter = adapter;
  weights->impl_->base = std::move(base);
  return weights;
}

const std::shared_ptr<const Weights>& Weights::base() const { return impl_->base; }
const AdapterSpec* Weights::adapter() const { return impl_->adapter ? &*impl_->adapter : nullptr; }
const ModelSpec& Weights::spec() const { return impl_->spec; }
const Part& Weights::part() const { return impl_->part; }
DType Weights::dtype() const { return impl_->dtype; }
const std::vector<Parameter>& Weights::layout() const { return impl_->layout; }
int64_t Weights::elements() const { return impl_->elements; }
std::span<std::byte> Weights::bytes() {
  TP_CHECK(!laid_out()) << "these weights are laid out for products";
  BringDown();
  impl_->same = nullptr;
  return impl_->arena;
}
std::span<const std::byte> Weights::bytes() const {
  TP_CHECK(!laid_out()) << "these weights are laid out for products";
  BringDown();
  return impl_->arena;
}

device::ByteStore Weights::store() {
  (void)std::as_const(*this).bytes();
  return {impl_->arena, [m = impl_.get()] { m->same = nullptr; }};
}

at::Tensor Weights::Get(int64_t index) const {
  TP_CHECK(index >= 0 && index < static_cast<int64_t>(impl_->layout.size())) << "parameter " << index;
  TP_CHECK(!laid_out()) << "these weights are laid out for products";
  BringDown();
  impl_->same = nullptr;
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

std::span<const std::byte> Weights::Plain(std::string_view name) const {
  const Impl& m = *impl_;
  const auto p = std::ranges::find(m.layout, name, &Parameter::name);
  TP_CHECK(p != m.layout.end()) << "no parameter is called " << name;
  const auto index = static_cast<size_t>(p - m.layout.begin());
  TP_CHECK(!laid_out() || !m.in_strips[index]) << name << " is laid out for products";
  TP_CHECK(!m.blocks || m.blocks->types[index] == device::BlockType::kNone) << name << " is in blocks";
  if (!laid_out()) BringDown();
  const int64_t at = m.blocks ? m.blocks->at[index] : p->offset * Bytes(m.dtype);
  return m.arena.subspan(static_cast<size_t>(at), static_cast<size_t>(p->numel() * Bytes(m.dtype)));
}

void Weights::Initialize(uint64_t seed, double init_std) {
  const Rng root = Rng(seed).Fork("weights");
  impl_->newer = nullptr;
  impl_->same = nullptr;
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
    if (p.name == "score" && impl_->base != nullptr && impl_->base->spec().value_head) {
      const auto bytes = static_cast<size_t>(p.numel() * Bytes(impl_->dtype));
      std::memcpy(base, impl_->base->Plain(p.name).data(), bytes);
    }
    if (p.name.ends_with("_bias") || p.name == "score") continue;  // zero
    const bool low_rank = impl_->adapter.has_value();
    // Of an embedding A is zeros and B is Normal(0, 1), as the reference library has it.
    const bool of_embedding = low_rank && p.name.starts_with("embedding.");
    if (low_rank && p.name.ends_with(".b") != of_embedding) continue;
    const bool uniform = low_rank && !of_embedding && impl_->adapter->init == AdapterInit::kKaiming;
    const bool to_residual = p.name.ends_with(".o") || p.name.ends_with("down");
    // Of an adapter as the reference library does: A of rank r within 1 / sqrt(width), or Normal(0, 1 / r).
    const double std = uniform        ? 1.0 / std::sqrt(static_cast<double>(p.shape[1]))
                       : of_embedding ? 1.0
                       : low_rank     ? 1.0 / static_cast<double>(impl_->adapter->rank)
                                      : init_std * (to_residual ? residual : 1.0);
    const Rng stream = root.Fork(p.name);
    constexpr int64_t kBlock =
        65536;  // each block has a stream of its own, so that blocks can be drawn in parallel
    const int64_t blocks = (p.numel() + kBlock - 1) / kBlock;
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        Rng rng = stream.Fork(static_cast<uint64_t>(b));
        const int64_t stop = std::min(p.numel(), (b + 1) * kBlock);
        std::vector<float> values(static_cast<size_t>(stop - b * kBlock));
        for (float& v : values)
          v = static_cast<float>(std * (uniform ? 2.0 * rng.Uniform() - 1.0 : rng.Normal()));
        put(b * kBlock, values);
      }
    });
  }
}

namespace {

device::SaltedSumsArgs Buckets(const void* arena, int64_t bytes) {
  return {
      .words = bytes / 8, .bucket_words = kDigestBucketBytes / 8, .x = static_cast<const uint64_t*>(arena)};
}

}  // namespace

uint64_t Weights::Digest() const {
  if (laid_out()) return impl_->digest;
  if (const DeviceWeights* newer = impl_->newer.load()) return newer->Digest();
  device::SaltedSumsArgs a = Buckets(impl_->arena.data(), size());
  std::vector<uint64_t> sums(static_cast<size_t>(a.buckets()));
  a.sums = sums.data();
  device::SaltedSums(a);
  return DigestOfBuckets(sums);
}

void Weights::BringDown() const {
  Impl& m = *impl_;
  if (m.newer.load() == nullptr && !m.lost) return;
  const std::lock_guard lock(m.mu);  // others may read the arena at the same time
  TP_CHECK(!m.lost) << "these weights were trained on a device that failed before they were read";
  if (const DeviceWeights* newer = m.newer.load()) {
    newer->Download(m.arena);
    m.same = newer;
  }
  m.newer = nullptr;
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
  return p.product_rows > 0 && device.lays_out(p.shape[0], p.product_rows, p.numel() / p.shape[0], dtype);
}
device::View Matrix(void* arena, const Parameter& p, DType dtype) {
  return {static_cast<std::byte*>(arena) + p.offset * Bytes(dtype), p.shape[0], p.numel() / p.shape[0],
          dtype};
}

}  // namespace

void Weights::LayOutFor(device::Device& device, std::optional<uint64_t> digest) {
  Impl& m = *impl_;
  if (laid_out() || !device.host_memory()) return;
  TakeLaidOut(device, digest ? *digest : Digest());
  for (size_t i = 0; i < m.in_strips.size(); ++i) {
    const device::View matrix = Matrix(m.arena.data(), m.layout[i], m.dtype);
    if (m.in_strips[i]) device.LayOut(matrix, matrix.data);
  }
}
void Weights::TakeLaidOut(const device::Device& device, uint64_t digest) {
  Impl& m = *impl_;
  std::vector<bool> in_strips;
  for (const Parameter& p : m.layout) in_strips.push_back(LaysOut(device, p, m.dtype));
  if (std::ranges::find(in_strips, true) == in_strips.end()) return;
  m.digest = digest;
  m.in_strips = std::move(in_strips);
}
bool Weights::laid_out() const { return !impl_->in_strips.empty(); }
const BlockLayout* Weights::blocks() const { return impl_->blocks ? &*impl_->blocks : nullptr; }
bool Weights::owns_arena() const { return !impl_->owned.bytes().empty(); }
void Weights::LayOutByParts() { impl_->by_parts = true; }
int64_t Weights::size() const {
  return impl_->blocks ? impl_->blocks->bytes : impl_->elements * Bytes(impl_->dtype);
}
int64_t Weights::strips_bytes() const {
  int64_t sum = 0;
  for (const auto& one : impl_->on_devices) {
    const auto there = one.lock();
    if (there == nullptr) continue;
    sum += there->strips_bytes();
    if (there->part() != part()) sum += there->elements() * Bytes(dtype());
  }
  return sum;
}
std::span<std::byte> Weights::Overwrite() {
  TP_CHECK(!impl_->blocks) << "a model in blocks is frozen";
  impl_->in_strips.clear();
  impl_->newer = nullptr;
  impl_->same = nullptr;
  impl_->lost = false;
  ++impl_->overwritten;
  return impl_->arena;
}

std::shared_ptr<DeviceWeights> Weights::On(const std::shared_ptr<device::Device>& device,
                                           const Part& part) const {
  auto& all = impl_->on_devices;
  std::erase_if(all, [](const auto& one) { return one.expired(); });
  for (const auto& one : all) {
    std::shared_ptr<DeviceWeights> there = one.lock();
    if (there->part() != part) continue;
    const device::Device& other = there->device();
    // Devices that compute in the host's memory share it, if they read the weights alike.
    const bool alike = other.host_memory() && device->host_memory() &&
                       std::ranges::all_of(layout(), [&](const Parameter& p) {
                         return LaysOut(other, p, dtype()) == LaysOut(*device, p, dtype());
                       });
    if (!alike && &other != device.get()) continue;
    // Who comes new finds the arena as it is now.
    there->copy_ != nullptr && !there->cut() ? there->Upload() : there->Changed();
    return there;
  }
  auto made = std::make_shared<DeviceWeights>(*this, device, part);
  all.push_back(made);
  return made;
}

DeviceWeights::DeviceWeights(const Weights& host, std::shared_ptr<device::Device> device, const Part& part)
    : host_(host),
      device_(std::move(device)),
      part_(part),
      layout_(cut() ? Layout(PartSpec(host.spec(), part)) : host.layout()),
      elements_(cut() ? LayoutElements(PartSpec(host.spec(), part)) : host.elements()) {
  if (cut()) {
    TP_CHECK(host.part().whole() && host.blocks() == nullptr)
        << "part " << part.rank << " of " << part.of << " of weights that are part " << host.part().rank
        << " of " << host.part().of;
    for (int64_t rank = 0; rank < part.of; ++rank)
      runs_.push_back(Runs(host.spec(), {rank, part.of, part.what}));
    copy_ = device_->Need(elements_ * Bytes(host.dtype()));
    data_ = copy_->data();
    CutFromHost();
  } else if (device_->host_memory()) {
    data_ = host_.impl_->arena.data();
  } else {
    copy_ = device_->Put(host.bytes());
    data_ = copy_->data();
    WentUp();
  }
}
device::View DeviceWeights::In(void* arena, const Parameter& p) const {
  return Matrix(arena, p, host_.dtype());
}
device::View DeviceWeights::Stands(size_t index) const {
  device::View view = In(data_, layout_[index]);
  if (const BlockLayout* blocks = host_.blocks())
    view.data = static_cast<std::byte*>(data_) + blocks->at[index];
  return view;
}

device::View DeviceWeights::parameter(int64_t i) const {
  const auto index = static_cast<size_t>(i);
  TP_CHECK(cut() || !host_.laid_out() || !host_.impl_->in_strips[index])
      << layout_[index].name << " is laid out for products";
  TP_CHECK(host_.blocks() == nullptr || host_.blocks()->types[index] == device::BlockType::kNone)
      << layout_[index].name << " is in blocks";
  return Stands(index);
}
DeviceWeights::Matrices DeviceWeights::product(int64_t i) {
  const auto index = static_cast<size_t>(i);
  const Parameter& p = layout_[index];
  if (const BlockLayout* blocks = host_.blocks()) return {Stands(index), false, blocks->types[index]};
  if (!cut() && host_.laid_out()) return {In(data_, p), host_.impl_->in_strips[index]};
  if (!LaysOut(*device_, p, host_.dtype())) return {In(data_, p), false};
  if (host_.impl_->by_parts) return ProductOfPart(p);
  if (made_of_ != host_.impl_->overwritten) MakeStrips();
  return {In(strips_->data(), p), true};
}
DeviceWeights::Matrices DeviceWeights::stored(int64_t i) {
  return !cut() && host_.laid_out() ? product(i) : Matrices{parameter(i), false};
}
int64_t DeviceWeights::strips_bytes() const { return strips_ == nullptr ? 0 : strips_->bytes(); }
void DeviceWeights::MakeStrips() {
  if (strips_ == nullptr) strips_ = device_->Take(1, elements_, host_.dtype()).memory;
  for (const Parameter& p : layout_) {
    if (LaysOut(*device_, p, host_.dtype())) device_->LayOut(In(data_, p), In(strips_->data(), p).data);
  }
  made_of_ = host_.impl_->overwritten;
}
DeviceWeights::Matrices DeviceWeights::ProductOfPart(const Parameter& p) {
  const std::vector<int64_t> begins = GradientParts(layout_);
  const auto part_of = [&](const Parameter& q) {
    return static_cast<size_t>(std::ranges::upper_bound(begins, q.offset) - begins.begin()) - 1;
  };
  const size_t part = part_of(p);
  const auto strips = [&](Parameter q) {
    q.offset -= begins[part];
    return In(strips_->data(), q);
  };
  if (strips_ == nullptr) {
    int64_t most = 0;
    for (const Parameter& q : layout_)
      if (LaysOut(*device_, q, host_.dtype()))
        most = std::max(most, begins[part_of(q) + 1] - begins[part_of(q)]);
    strips_ = device_->Take(1, most, host_.dtype()).memory;
  }
  if (made_of_ != host_.impl_->overwritten || made_part_ != part) {
    for (const Parameter& q : layout_)
      if (part_of(q) == part && LaysOut(*device_, q, host_.dtype()))
        device_->LayOut(In(data_, q), strips(q).data);
    made_of_ = host_.impl_->overwritten;
    made_part_ = part;
  }
  return {strips(p), true};
}
DeviceWeights::~DeviceWeights() {
  const DeviceWeights* me = this;
  host_.impl_->same.compare_exchange_strong(me, nullptr);
  if (host_.impl_->newer.load() != this) return;
  try {  // LibTorch throws where the device has failed; who asks for the weights is told
    host_.BringDown();
    host_.impl_->same = nullptr;
  } catch (const std::exception&) {
    host_.impl_->newer = nullptr;
    host_.impl_->lost = true;
  }
}
void DeviceWeights::Upload() {
  if (cut())
    CutFromHost();
  else if (copy_ != nullptr && host_.impl_->newer.load() != this && host_.impl_->same.load() != this) {
    device_->Upload(static_cast<std::byte*>(data_), host_.bytes());
    WentUp();
  }
  Changed();
}
void DeviceWeights::WentUp() {
  const DeviceWeights* nobody = nullptr;  // of two devices' copies the one that trained is remembered
  host_.impl_->same.compare_exchange_strong(nobody, this);
}
void DeviceWeights::Written() {
  if (copy_ != nullptr && !cut()) {
    const DeviceWeights* before = host_.impl_->newer.exchange(this);
    TP_CHECK(before == nullptr || before == this) << "the same weights are trained on two devices";
    host_.impl_->same = nullptr;
  }
  Changed();
}
void DeviceWeights::Changed() {
  made_of_ = -1;
  if (host_.laid_out()) strips_.reset();
}
namespace {

// The runs of a parameter, between where they stand behind each other and the arena of the whole model.
void Scatter(const ParameterRuns& of, const std::byte* from, std::byte* arena, int64_t each) {
  for (const Run& run : of.runs) {
    for (int64_t i = 0; i < run.rows; ++i, from += run.n * each)
      std::memcpy(arena + (run.in_whole + i * run.stride) * each, from, static_cast<size_t>(run.n * each));
  }
}
void Gather(const ParameterRuns& of, const std::byte* arena, std::byte* to, int64_t each) {
  for (const Run& run : of.runs) {
    for (int64_t i = 0; i < run.rows; ++i, to += run.n * each)
      std::memcpy(to, arena + (run.in_whole + i * run.stride) * each, static_cast<size_t>(run.n * each));
  }
}
int64_t Elements(const ParameterRuns& of) {
  int64_t sum = 0;
  for (const Run& run : of.runs) sum += run.n * run.rows;
  return sum;
}

}  // namespace

void Weights::TakePart(std::span<const std::byte> whole) {
  Impl& m = *impl_;
  const int64_t each = Bytes(m.dtype);
  TP_CHECK(static_cast<int64_t>(whole.size()) == LayoutElements(m.spec) * each)
      << whole.size() << " bytes are not those of the whole model";
  std::byte* arena = Overwrite().data();
  const std::vector<ParameterRuns> runs = Runs(m.spec, m.part);
  for (size_t i = 0; i < runs.size(); ++i)
    Gather(runs[i], whole.data(), arena + m.layout[i].offset * each, each);
}

void DeviceWeights::CutFromHost() {
  const std::span<const std::byte> arena = host_.bytes();
  const int64_t each = Bytes(host_.dtype());
  std::vector<std::byte> piece;
  for (size_t i = 0; i < layout_.size(); ++i) {
    const ParameterRuns& of = runs_[static_cast<size_t>(part_.rank)][i];
    piece.resize(static_cast<size_t>(Elements(of) * each));
    Gather(of, arena.data(), piece.data(), each);
    device_->Upload(static_cast<std::byte*>(data_) + layout_[i].offset * each,
                    std::span<const std::byte>(piece));
  }
}

void DeviceWeights::Collect(Peers& peers) {
  TP_CHECK(cut()) << "nothing is cut";
  std::byte* arena = host_.impl_->arena.data();
  const int64_t each = Bytes(host_.dtype());
  std::vector<std::byte> all;
  for (size_t i = 0; i < layout_.size(); ++i) {
    // What every rank has is the same everywhere.
    const bool everywhere = runs_[0][i].everywhere;
    std::vector<sharding::Interval> of_rank;
    int64_t end = 0;
    for (int64_t rank = 0; rank < part_.of; ++rank) {
      const int64_t n = everywhere && rank != part_.rank ? 0 : Elements(runs_[static_cast<size_t>(rank)][i]);
      of_rank.push_back({end, end + n * each});
      end = of_rank.back().to;
    }
    all.resize(static_cast<size_t>(end));
    const sharding::Interval mine = of_rank[static_cast<size_t>(part_.rank)];
    device_->Download(all.data() + mine.from, static_cast<const std::byte*>(data_) + layout_[i].offset * each,
                      mine.size());
    if (!everywhere) peers.Gather(std::span(all), of_rank, "weights");
    for (int64_t rank = 0; rank < part_.of; ++rank) {
      const sharding::Interval theirs = of_rank[static_cast<size_t>(rank)];
      if (theirs.size() > 0)
        Scatter(runs_[static_cast<size_t>(rank)][i], all.data() + theirs.from, arena, each);
    }
  }
  ++host_.impl_->overwritten;
  host_.impl_->same = nullptr;
  for (const auto& one : host_.impl_->on_devices) {
    if (const auto there = one.lock(); there != nullptr && there.get() != this) there->Upload();
  }
}

uint64_t DeviceWeights::Digest() const {
  device::SaltedSumsArgs a = Buckets(data_, host_.size());
  const auto sums = device_->Need(a.buckets() * 8);
  a.sums = static_cast<uint64_t*>(sums->data());
  device_->SaltedSums(a);
  return DigestOfBuckets(device_->Read(static_cast<const uint64_t*>(a.sums), a.buckets()));
}
void DeviceWeights::Download(std::span<std::byte> to) const {
  device_->Download(to.data(), data_, copy_->bytes());
}

struct Gradients::Impl {
  device::Device& device;
  int64_t elements;
  std::unique_ptr<GradientKeeper> keeper;
  std::shared_ptr<device::Buffer> memory;  // null: zeros
};

Gradients::Gradients(const Weights& weights, device::Device& device, std::unique_ptr<GradientKeeper> keeper)
    : impl_(new Impl{
          .device = device, .elements = weights.elements(), .keeper = std::move(keeper), .memory = nullptr}) {
}
Gradients::Gradients(const DeviceWeights& weights, std::unique_ptr<GradientKeeper> keeper)
    : impl_(new Impl{.device = weights.device(),
                     .elements = weights.elements(),
                     .keeper = std::move(keeper),
                     .memory = nullptr}) {}
Gradients::~Gradients() = default;

float* Gradients::At(int64_t offset) {
  return impl_->keeper == nullptr ? data() + offset : impl_->keeper->At(offset);
}
void Gradients::Final(int64_t from, int64_t to) {
  if (impl_->keeper != nullptr) impl_->keeper->Final(from, to);
}
float* Gradients::data() {
  Impl& m = *impl_;
  TP_CHECK(m.keeper == nullptr) << "gradients that somebody keeps were taken for one array";
  if (m.memory == nullptr) m.memory = m.device.Need(m.elements * static_cast<int64_t>(sizeof(float)));
  return static_cast<float*>(m.memory->data());
}
std::span<float> Gradients::values() { return {data(), static_cast<size_t>(impl_->elements)}; }
int64_t Gradients::elements() const { return impl_->elements; }
void Gradients::Zero() {
  if (impl_->memory != nullptr) impl_->device.Zero(impl_->memory->data(), impl_->memory->bytes());
}
void Gradients::Release() {
  impl_->memory = nullptr;
  if (impl_->keeper != nullptr) impl_->keeper->Release();
}
int64_t Gradients::held_bytes() const {
  if (impl_->keeper != nullptr) return impl_->keeper->held_bytes();
  return impl_->memory == nullptr ? 0 : impl_->memory->bytes();
}

}  // namespace tidepool::model
