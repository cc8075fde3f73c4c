#pragma once
// All parameters of a model in one flat, aligned arena.
//
// Parameters stand in module order, each start aligned to 64 elements, in rollout layout (fused
// qkv and gate|up): index space [0, total). Gradients, float32 master copy and optimizer moments
// have the same index. The arena may be given from outside (shared memory), so that two roles of
// one process alias it, and a publication writes it in place.

#include <ATen/core/ATen_fwd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/byte_store.h"
#include "core/device/device.h"
#include "core/model/adapter.h"
#include "core/model/block_layout.h"
#include "core/model/cut.h"
#include "core/model/hugging_face.h"
#include "core/model/layout.h"
#include "core/model/spec.h"

namespace tidepool::model {

class DeviceWeights;
class Peers;

class Weights {
 public:
  // Zeroed arena of its own (64-byte aligned), or over `arena` (>= elements * dtype bytes, outlives this).
  // `part`: the arena has that part of the model alone, with its layout, for decoders of it: TakePart fills
  // it, and nothing that reads or writes a whole model applies.
  static StatusOr<std::unique_ptr<Weights>> Create(const ModelSpec& spec, DType dtype,
                                                   std::span<std::byte> arena = {}, const Part& part = {});
  // The same of a frozen model whose matrices stand in blocks, which decoders on the CPU read: like an arena
  // that is laid out (LayOutFor), and never trained. Over `arena` (>= blocks.bytes), or in memory of its own,
  // which `read` fills.
  static StatusOr<std::unique_ptr<Weights>> CreateInBlocks(
      const ModelSpec& spec, DType dtype, BlockLayout blocks, std::span<std::byte> arena,
      const std::function<Status(std::span<std::byte> arena)>& read = nullptr);
  // An arena of another kind of model (core/policy): its parameters with offsets that ascend and are
  // multiples of 64. spec() is empty then, and the folder functions below do not apply.
  static StatusOr<std::unique_ptr<Weights>> FromLayout(std::vector<Parameter> layout, DType dtype);
  // An adapter (adapter.h) on `base`, which is frozen: zeros, with AdapterLayout. Decoders compute with both;
  // what trains, publishes or saves these weights sees the adapter alone. Errors of CheckAdapter.
  static StatusOr<std::unique_ptr<Weights>> Adapt(std::shared_ptr<const Weights> base,
                                                  const AdapterSpec& adapter);
  ~Weights();

  // The model that these weights are an adapter on, and its spec; null: they are a model.
  [[nodiscard]] const std::shared_ptr<const Weights>& base() const;
  [[nodiscard]] const AdapterSpec* adapter() const;
  // Of the whole model; of an adapter: its base's, with the value head that it may bring.
  [[nodiscard]] const ModelSpec& spec() const;
  [[nodiscard]] const Part& part() const;  // that the arena has
  [[nodiscard]] DType dtype() const;
  [[nodiscard]] const std::vector<Parameter>& layout() const;  // of the arena
  [[nodiscard]] int64_t elements() const;
  // The whole arena. These require that it is not laid out (LayOutFor). What a device has trained comes
  // down first, so what is given is good until the next update, and for writing until the next Upload;
  // several threads may ask.
  [[nodiscard]] std::span<std::byte> bytes();
  [[nodiscard]] std::span<const std::byte> bytes() const;
  // The same for who mostly reads: a device's copy counts as old when something is written there, no sooner.
  [[nodiscard]] device::ByteStore store();
  [[nodiscard]] at::Tensor Get(int64_t index) const;  // view of parameter `index`; requires in range
  [[nodiscard]] at::Tensor Get(std::string_view name) const;

  // Of a parameter that stands as it is also where others are laid out or in blocks: norms, biases, the
  // score.
  [[nodiscard]] std::span<const std::byte> Plain(std::string_view name) const;

  // For weights that nothing but decoders on the CPU will read, and nothing trains: lays the arena itself out
  // for `device`, so that no second copy is needed. Nothing on a device that takes matrices as they are, or
  // that has memory of its own. `digest`: what Digest() will say; without it, what it says now.
  void LayOutFor(device::Device& device, std::optional<uint64_t> digest = std::nullopt);
  // The same of an arena that stands so already, since another process laid it out for such a device.
  void TakeLaidOut(const device::Device& device, uint64_t digest);
  [[nodiscard]] bool laid_out() const;
  [[nodiscard]] const BlockLayout* blocks() const;  // null: it is in none
  [[nodiscard]] bool owns_arena() const;            // in memory of this process alone
  // For weights that are trained and read a part at a time (layout.h GradientParts): what decoders lay out
  // beside the arena is that of the part that they are at, made when they come to it. As much less memory,
  // and once more work for each forward.
  void LayOutByParts();
  // For writing the whole arena anew: it is laid out no more, what decoders made of it is out of date.
  [[nodiscard]] std::span<std::byte> Overwrite();
  // Overwrites the arena of a part with what it has of the whole model's arena, of which no more is read.
  // requires that many bytes
  void TakePart(std::span<const std::byte> whole);
  // These weights, or a part of them, where `device` computes with them: one copy for all who hold it, which
  // optimizers write. From the thread that owns the device.
  [[nodiscard]] std::shared_ptr<DeviceWeights> On(const std::shared_ptr<device::Device>& device,
                                                  const Part& part = {}) const;
  [[nodiscard]] int64_t size() const;          // of the arena in bytes
  [[nodiscard]] int64_t strips_bytes() const;  // that are laid out, or cut out, beside it for decoders

  // Normal(0, init_std) matrices, ones for norms, zeros for biases; residual projections scaled by
  // 1/sqrt(2 L). A pure function of (spec, seed, std). Of an adapter: A as its spec says, B zeros; of an
  // embedding A zeros and B Normal(0, 1).
  void Initialize(uint64_t seed, double init_std);
  // Digest of the arena by 64 MiB buckets and of the buckets (core/base/hash.h SaltedSum): equal bytes, equal
  // digest.
  // Where a device has trained them it computes the digest, and nothing comes down. Where the arena is laid
  // out: the digest from before that.
  [[nodiscard]] uint64_t Digest() const;

 private:
  friend class DeviceWeights;
  Weights();
  void BringDown() const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A model with a value head of zeros on the blocks of `from` (a copy): what a critic or a reward model starts
// as.
StatusOr<std::unique_ptr<Weights>> WithValueHead(const Weights& from);

// The weights where a device computes with them, with the same index: data(), which is the arena if the
// device's memory is the host's, else a copy; and strips, which are data() laid out for products where the
// device is faster so. Publications, digests and folders see the host's arena. Who writes the arena calls
// Upload(), a kernel that writes data() is followed by Written(): the arena then follows when somebody reads
// it, at the latest when this goes. Strips follow by themselves.
//
// Of a part of whole weights (cut.h) data() is always a copy, with the part's index. What is written there
// comes to the host's arena, which has the whole, by Collect alone, together with what the other ranks wrote.
class DeviceWeights {
 public:
  // `host` outlives it. Throws c10::OutOfMemoryError without memory for a copy.
  DeviceWeights(const Weights& host, std::shared_ptr<device::Device> device, const Part& part = {});
  ~DeviceWeights();

  [[nodiscard]] device::Device& device() const { return *device_; }
  [[nodiscard]] const Part& part() const { return part_; }
  [[nodiscard]] const std::vector<Parameter>& layout() const { return layout_; }  // of the part
  [[nodiscard]] int64_t elements() const { return elements_; }
  // Whether every rank has all of parameter i.
  [[nodiscard]] bool everywhere(int64_t i) const {
    return cut() && runs_[static_cast<size_t>(part_.rank)][static_cast<size_t>(i)].everywhere;
  }
  [[nodiscard]] void* data() const { return data_; }  // [elements] of the weights' type
  // Parameter i as [first of its shape, the others]. requires, of a product's, that the arena is not laid
  // out and in no blocks.
  [[nodiscard]] device::View parameter(int64_t i) const;
  // A parameter as it is to be read, and whether its matrices are in strips or in blocks.
  struct Matrices {
    device::View w;
    bool strips = false;
    device::BlockType blocks = device::BlockType::kNone;
  };
  [[nodiscard]] Matrices product(int64_t i);  // for products; makes the strips where they are out of date
  // As it stands, plain where it is so: for GatherRows and MultiplyBack.
  [[nodiscard]] Matrices stored(int64_t i);
  [[nodiscard]] int64_t strips_bytes() const;  // laid out beside data()
  // The host's were written. Nothing moves where they are what this trained, or what went up last, and nobody
  // asked to write since.
  void Upload();
  void Written();  // data() was, by kernels
  // All ranks' parts to the arena of each; who else computes with these weights finds them there.
  // requires a part of whole weights, and that all ranks call it.
  void Collect(Peers& peers);

 private:
  friend class Weights;
  // It is a copy of what the host's arena, which has the whole, has of a part.
  [[nodiscard]] bool cut() const { return part_ != host_.part(); }
  void Changed();  // strips are out of date
  void WentUp();   // the host's bytes, all of them
  [[nodiscard]] uint64_t Digest() const;
  void Download(std::span<std::byte> to) const;  // requires memory of its own
  [[nodiscard]] device::View In(void* arena, const Parameter& p) const;
  [[nodiscard]] device::View Stands(size_t index) const;  // in data()
  void MakeStrips();
  Matrices ProductOfPart(const Parameter& p);
  void CutFromHost();

  const Weights& host_;
  const std::shared_ptr<device::Device> device_;
  const Part part_;
  std::vector<Parameter> layout_;
  int64_t elements_ = 0;
  std::vector<std::vector<ParameterRuns>> runs_;  // [rank]; where it is cut
  std::shared_ptr<device::Buffer> copy_;          // null: data_ is the arena
  void* data_;
  std::shared_ptr<device::Buffer> strips_;  // with the same index; null: not made, or the arena is laid out
  int64_t made_of_ = -1;  // value of the arena's `overwritten` when strips_ were made; -1: make them again
  size_t made_part_ = 0;  // with LayOutByParts: that strips_ are of
};

// Keeps the gradients that a backward makes in a way of its own, and learns when it has them.
class GradientKeeper {
 public:
  virtual ~GradientKeeper() = default;
  // Where a backward adds those of the parameter that begins at this element, on the device: of zeros, before
  // anything was added.
  virtual float* At(int64_t offset) = 0;
  // A backward will add nothing more to elements [from, to), whole parameters: the last norm with the head,
  // then each block, from the last to the first, then the embedding.
  virtual void Final(int64_t from, int64_t to) = 0;
  virtual void Release() = 0;
  [[nodiscard]] virtual int64_t held_bytes() const = 0;
};

// Flat float32 gradients with the weights' index, in memory of a device; zero at the start.
class Gradients {
 public:
  // The device outlives them. `keeper`: has them in the place of one array; null: the array.
  Gradients(const Weights& weights, device::Device& device, std::unique_ptr<GradientKeeper> keeper = nullptr);
  explicit Gradients(const DeviceWeights& weights,
                     std::unique_ptr<GradientKeeper> keeper = nullptr);  // of a part, with its index
  ~Gradients();
  // For a backward: GradientKeeper's, or the place in the array.
  [[nodiscard]] float* At(int64_t offset);
  void Final(int64_t from, int64_t to);
  void Zero();  // the array
  // Zeroes by giving the memory back; it is taken again when it is written.
  void Release();
  [[nodiscard]] int64_t held_bytes() const;  // 0 until they are used and after Release()
  [[nodiscard]] int64_t elements() const;
  [[nodiscard]] float* data();              // [elements], on the device. requires that there is no keeper
  [[nodiscard]] std::span<float> values();  // the same. requires that the device's memory is the host's

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// --- Hugging Face folders (hugging_face.cc); ReadSpec and CheckHuggingFace are in hugging_face.h ---

// Reads config.json, generation_config.json and the safetensors (one file or index) of `folder`; converts
// to `dtype`. Errors name file and key; what is legal but not implemented is kUnimplemented.
StatusOr<std::unique_ptr<Weights>> LoadHuggingFace(const std::string& folder, DType dtype,
                                                   std::span<std::byte> arena = {});
// The same for a spec that was read before, and perhaps changed (its end tokens). requires CheckSpec(spec).
StatusOr<std::unique_ptr<Weights>> LoadTensors(const ModelSpec& spec, const std::string& folder, DType dtype,
                                               std::span<std::byte> arena = {});
// The adapter in a folder (adapter_files.h) on `base`, in its type. kInvalidArgument also where it has not
// the form that is `wanted`, or does not fit the base.
StatusOr<std::unique_ptr<Weights>> LoadAdapter(const std::string& folder, std::shared_ptr<const Weights> base,
                                               const AdapterSpec& wanted);
// Writes config.json, generation_config.json and model.safetensors (sharded above max_shard_bytes)
// into `folder`; tokenizer files are copied by the caller. `source`: the folder that the weights were read
// from, or empty. What still has its values is written as it stands there, so names, shapes, types (float16,
// mixed) and bytes of an untrained model are those it was read from, tensors that nobody needed included;
// what was trained is written in the weights' type under the source's names. The source's config files are
// kept, but for the type.
Status SaveHuggingFace(const Weights& weights, const std::string& folder,
                       int64_t max_shard_bytes = int64_t{5} << 30, const std::string& source = "");

}  // namespace tidepool::model
