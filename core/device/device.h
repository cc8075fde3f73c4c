#pragma once
// One place that computes: its memory, copies to and from the host, and one method for each kernel.
//
// A device's memory is read and written by its kernels alone. The host holds addresses (Buffer, View),
// uploads what kernels read, and downloads what they wrote. Kernels run in the order of their calls; they may
// still run when a call returns, and Download and Synchronize wait for them.
//
// Not thread-safe: one thread uses a device at a time. Only Download may be called by several, of memory that
// no kernel writes meanwhile; other memory may be freed beside it. Several devices may stand for one
// processor.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/choices.h"
#include "core/base/status.h"
#include "core/device/arguments.h"

namespace tidepool::device {

inline int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }
template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;

// Rows of device memory without gaps. Does not own it.
struct View {
  void* data = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kFloat32;

  [[nodiscard]] explicit operator bool() const { return data != nullptr; }
  [[nodiscard]] int64_t elements() const { return rows * cols; }
  [[nodiscard]] int64_t bytes() const { return elements() * SizeOf(dtype); }
  // The address for kernels of T, null for no memory. requires the dtype of T.
  template <typename T>
  [[nodiscard]] T* As() const {
    TP_CHECK(data == nullptr || dtype == kDTypeOf<T>)
        << "an array of " << Name(dtype) << " taken for another";
    return static_cast<T*>(data);
  }
  // requires [first, first + n) among the rows.
  [[nodiscard]] View Rows(int64_t first, int64_t n) const {
    TP_CHECK(first >= 0 && n >= 0 && first + n <= rows)
        << "rows " << first << " to " << first + n << " of " << rows;
    return {static_cast<std::byte*>(data) + first * cols * SizeOf(dtype), n, cols, dtype};
  }
};

// Memory of a device, 64-byte aligned; freed with it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 protected:
  Buffer(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}

 private:
  void* data_;
  int64_t bytes_;
};

// A view with a share in its memory.
struct Array {
  std::shared_ptr<Buffer> memory;
  View view;
  [[nodiscard]] explicit operator bool() const { return memory != nullptr; }
};

// Of a batch, on the host; what PlanAttention divides.
struct RowRunsOfHost {
  std::span<const int32_t> first_run, lengths;  // [rows]
  std::span<const KvRun> runs;
};
struct HeadShape {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  DType dtype = DType::kFloat32;
};

// Kernels that were recorded, to run again with the arguments that they had.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Launch() = 0;
};

// Between Begin and End kernels that are called are recorded and not run. What is not ended is given up.
// Kernels that are called before run; the last of them by HaveRun.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void HaveRun() {}
  virtual void Begin() = 0;
  virtual std::unique_ptr<Graph> End() = 0;
};

// Attention in a Graph, of rows that are sequences of their own: kernels read from memory how it is divided,
// and what other rows need can take its place there.
class GraphAttention {
 public:
  virtual ~GraphAttention() = default;
  [[nodiscard]] virtual int64_t words() const = 0;  // int32 that the division takes
  // Writes that of a batch of as many rows, for upload to where Place says. False: their keys are more than
  // there is room for.
  virtual bool Divide(const RowRunsOfHost& keys, std::span<int32_t> words) = 0;
  virtual void Place(const int32_t* words) = 0;  // on the device; before work() is used
  [[nodiscard]] virtual const AttentionWork& work() const = 0;
};

// A matrix [n, k] that multiplies rows in a forward.
struct ProductShape {
  const char* name;
  int64_t n = 0, k = 0;
  bool head = false;  // of the vocabulary: by far the widest
};

// Thrown where a device with memory of its own has failed (an illegal access, off the bus): what it has is
// lost, and so is all that it would compute.
class DeviceFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "cpu avx512_bf16", "checked", ...
  [[nodiscard]] virtual std::string name() const = 0;
  // Whether kernels read and write the host's own memory, at the host's addresses.
  [[nodiscard]] virtual bool host_memory() const = 0;
  // Whether Multiply gives a row the same bits in every batch.
  [[nodiscard]] virtual bool batch_invariant(DType) const = 0;

  // Zeroed memory; kResourceExhausted, with the size.
  virtual StatusOr<std::shared_ptr<Buffer>> Allocate(int64_t bytes) = 0;
  // Memory with any values, where that saves something.
  virtual StatusOr<std::shared_ptr<Buffer>> AllocateUnset(int64_t bytes) { return Allocate(bytes); }
  // from_host may be written again when this returns; the copy takes its place among the kernels.
  virtual void Upload(void* to, const void* from_host, int64_t bytes) = 0;
  virtual void Download(void* to_host, const void* from, int64_t bytes) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;  // no overlap
  virtual void Zero(void* to, int64_t bytes) = 0;
  virtual void Synchronize() = 0;
  // Gives back what kernels keep between calls; they take it again.
  virtual void ReleaseScratch() = 0;
  [[nodiscard]] virtual int64_t scratch_bytes() const = 0;
  // Bytes of its memory that nobody has, this process included: what is kept for later goes back first.
  // Nothing where its memory is the host's.
  [[nodiscard]] virtual std::optional<int64_t> free_bytes() { return std::nullopt; }

  // Whether sums go by SumTiles where arguments have them. Others take an argument's tiles as one; all can
  // leave a product unrounded (`sums`).
  [[nodiscard]] virtual bool sums_in_tiles() const { return false; }

  // Whether Multiply is faster with matrices [n, k] that were laid out for it; `rows` in all stand behind
  // each other.
  [[nodiscard]] virtual bool lays_out(int64_t /*rows*/, int64_t /*n*/, int64_t /*k*/, DType) const {
    return false;
  }
  // Whether products read matrices in blocks of 8 or 4 bits (core/device/blocks.h).
  [[nodiscard]] virtual bool reads_blocks() const { return false; }
  // Lays out matrices [rows, k] that stand behind each other, for MultiplyArgs::strips. `out`: as much
  // memory. requires lays_out.
  virtual void LayOut(const View& matrices, void* out);

  // How the attention of a batch is divided, for any number of layers.
  virtual std::unique_ptr<AttentionWork> PlanAttention(const RowRunsOfHost& keys, const HeadShape& shape) = 0;
  // ranges: [begin, end) of rows that attend inside themselves only and tile the batch; slots are rows.
  virtual std::unique_ptr<AttentionWork> PlanAttentionBackward(
      const RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>> ranges,
      const HeadShape& shape) = 0;

  // Whether kernels can be recorded: one launch then stands for all of them.
  [[nodiscard]] virtual bool has_graphs() const { return false; }
  // Runs what `kernels` calls, then records it by calling that once more: kernels alone, nothing else of the
  // device. Null where there is no memory for a graph; they have run all the same. Their arrays outlive the
  // graph. requires has_graphs().
  virtual std::unique_ptr<Graph> Record(const std::function<void()>& kernels);
  // How often what kernels keep between calls has moved: a graph of before may not be launched again.
  [[nodiscard]] virtual int64_t scratch_moves() const { return 0; }
  // With room for more keys than these rows have. requires has_graphs(), another run of each row, and that a
  // row's own key is its last.
  virtual std::unique_ptr<GraphAttention> PlanGraphAttention(const RowRunsOfHost& keys,
                                                             const HeadShape& shape);

#define TIDEPOOL_TYPED(Kernel)                         \
  virtual void Kernel(const Kernel##Args<float>&) = 0; \
  virtual void Kernel(const Kernel##Args<BF16>&) = 0;
#define TIDEPOOL_PLAIN(Kernel) virtual void Kernel(const Kernel##Args&) = 0;
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

  // Kernels that follow each other, where a device may have one for all; else one after the other.
#define TIDEPOOL_TOGETHER(T)                                                            \
  virtual void FusedMultiply(const FusedMultiplyArgs<T>& a) {                           \
    if (a.norm.rows > 0) RmsNorm(a.norm);                                               \
    Multiply(a.multiply);                                                               \
    if (a.glu.rows > 0) SwiGlu(a.glu);                                                  \
  }                                                                                     \
  /* a.q equals turn.q. One kernel for both need not write it: do not read it after. */ \
  virtual void RotaryAttention(const RotaryArgs<T>& turn, const AttentionArgs<T>& a) {  \
    Rotary(turn);                                                                       \
    Attention(a);                                                                       \
  }
  TIDEPOOL_TOGETHER(float)
  TIDEPOOL_TOGETHER(BF16)
#undef TIDEPOOL_TOGETHER

  // For what a computation needs in its midst. Throws c10::OutOfMemoryError where there is no memory, as a
  // kernel of LibTorch's does: a worker ends of it, and says what was asked and what is free.
  std::shared_ptr<Buffer> Need(int64_t bytes);
  // The same, of which the values may be any: who asks writes it.
  std::shared_ptr<Buffer> NeedUnset(int64_t bytes);
  // Need for rows of their own.
  Array Take(int64_t rows, int64_t cols, DType dtype);
  // Need for values of the host.
  template <typename V>
  std::shared_ptr<Buffer> Put(std::span<const V> values) {
    std::shared_ptr<Buffer> memory = NeedUnset(static_cast<int64_t>(values.size_bytes()));
    Upload(static_cast<V*>(memory->data()), values);
    return memory;
  }
  template <typename V>
  void Upload(V* to, std::span<const V> values) {
    if (!values.empty())
      Upload(to, static_cast<const void*>(values.data()), static_cast<int64_t>(values.size_bytes()));
  }
  template <typename V>
  std::vector<V> Read(const V* from, int64_t n) {
    std::vector<V> out(static_cast<size_t>(n));
    if (n > 0) Download(out.data(), from, n * static_cast<int64_t>(sizeof(V)));
    return out;
  }

 protected:
  // What Record records by.
  virtual std::unique_ptr<Recording> NewRecording();
};

// Arrays of the host that go up behind each other in one copy.
class Parcel {
 public:
  // Its place, for At. requires that nothing was sent
  template <typename V>
  int64_t Add(std::span<const V> values) {
    const size_t at = bytes_.size();
    const auto* p = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), p, p + values.size_bytes());
    bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment);
    return static_cast<int64_t>(at);
  }
  template <typename V>
  int64_t Add(const std::vector<V>& values) {
    return Add(std::span<const V>(values));
  }
  void Send(Device& device) { memory_ = device.Put(std::span<const std::byte>(bytes_)); }
  // requires Send
  template <typename V>
  [[nodiscard]] const V* At(int64_t place) const {
    return reinterpret_cast<const V*>(static_cast<const std::byte*>(memory_->data()) + place);
  }
  [[nodiscard]] const std::shared_ptr<Buffer>& memory() const { return memory_; }

 private:
  static constexpr size_t kAlignment = 16;  // of what a kernel reads at a time
  std::vector<std::byte> bytes_;
  std::shared_ptr<Buffer> memory_;
};

}  // namespace tidepool::device
