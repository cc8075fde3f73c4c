#pragma once
// Safetensors files: an 8-byte little-endian header length N, N bytes of JSON, then tensor data.
// (The format: github.com/huggingface/safetensors, README, "Format".)
//
// The reader believes nothing that it has not checked: N <= 100 MB and inside the file; the header
// is a UTF-8 JSON object that begins with '{' and has no duplicate keys; `__metadata__` maps strings
// to strings; every tensor has a known dtype, a shape whose product times the dtype's size does not
// overflow and equals end - begin; sorted by offset the tensors start at 0, leave no hole, do not
// overlap, and the last one ends with the file. Values are not looked at: a NaN is no error here.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/files/mapped_file.h"

namespace tidepool::files {

// The dtypes of the format. Only the first ten are of use to models here; the others can be checked
// and passed on as bytes.
enum class DType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kU16,
  kU32,
  kU64,
  kC64,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF6E2M3,
  kF6E3M2,
  kF4,
};
std::string_view DTypeName(DType dtype);  // "BF16"
std::optional<DType> ParseDType(std::string_view name);
int64_t DTypeBits(DType dtype);                            // 16; some formats are narrower than a byte
bool IsFloating(DType dtype);                              // F32, BF16, F16 or F64
std::string ShapeText(const std::vector<int64_t>& shape);  // "[64, 9]"
// Rounds or widens `n` values, by way of F32. requires both IsFloating. Neither need be aligned.
void ConvertFloats(DType from, const std::byte* in, int64_t n, DType to, std::byte* out);

inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major; [] is a scalar
  int64_t begin = 0;           // bytes from the start of the data
  int64_t end = 0;
  [[nodiscard]] int64_t numel() const;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // 8 + N, bytes from the start of the file
};

// Checks everything named above. kInvalidArgument with what was found; `where` opens each message.
// `prefix`: at least the first 8 + N bytes of the file; file_bytes: its whole size.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> prefix, int64_t file_bytes,
                                                   const std::string& where);

// A checked file, mapped. Immutable; thread-safe.
class SafetensorsFile {
 public:
  static StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  [[nodiscard]] const TensorInfo* Find(std::string_view name) const;  // null: none of that name
  // The tensor's bytes; not aligned beyond what the file gives, so copy or memcpy them out.
  // requires a TensorInfo of this file. Valid as long as this object.
  [[nodiscard]] std::span<const std::byte> Bytes(const TensorInfo& tensor) const;
  // The tensor's bytes were read and are not needed again soon: gives their memory back.
  void Discard(const TensorInfo& tensor) const { file_.Discard(Bytes(tensor)); }
  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys view header_.tensors
};

// The tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json
// names. Shard names must be plain file names inside the folder, and each listed tensor must be in
// its shard. Immutable; thread-safe.
class SafetensorsFolder {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
    [[nodiscard]] std::span<const std::byte> bytes() const { return file->Bytes(*info); }
  };
  static StatusOr<std::unique_ptr<SafetensorsFolder>> Open(const std::string& folder);

  [[nodiscard]] std::optional<Entry> Find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, Entry, std::less<>>& tensors() const { return entries_; }
  // Of names, types, shapes and all bytes, 16 hex digits; how they are cut into files does not count. Reads
  // all of it.
  [[nodiscard]] std::string Digest() const;

 private:
  SafetensorsFolder() = default;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// --- writing ---

using WriteBytes = std::function<Status(std::span<const std::byte>)>;

// A tensor to write. `produce` calls its argument any number of times, with exactly the tensor's
// bytes in total, and passes its errors on; so a tensor need not lie in memory at once.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::function<Status(const WriteBytes& write)> produce;
};
// A source of bytes that lie in memory; `bytes` outlives it.
TensorSource SourceOf(std::string name, DType dtype, std::vector<int64_t> shape,
                      std::span<const std::byte> bytes);

// Writes the tensors in the given order, with `__metadata__ {"format": "pt"}` as transformers asks
// for, and what `metadata` adds. The file appears under its name only when complete and synced.
// kInvalidArgument: duplicate or reserved name, bad shape, or a source that produced another number of bytes
// than its shape says.
Status WriteSafetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

// model.safetensors in `folder`, or, above max_shard_bytes, shards filled in order and an index file.
// A tensor larger than the limit gets a shard of its own. requires max_shard_bytes > 0.
Status WriteSafetensorsFolder(const std::string& folder, const std::vector<TensorSource>& tensors,
                              int64_t max_shard_bytes);

}  // namespace tidepool::files
