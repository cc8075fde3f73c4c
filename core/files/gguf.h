#pragma once
// GGUF version 3 files (github.com/ggml-org/ggml, docs/gguf.md): metadata and, mostly quantised,
// tensors. Little-endian files only.
//
// The reader is bounded: every count and length is compared with the bytes that are left before
// anything is allocated, names are unique, tensors lie aligned inside the file and do not overlap.
// The file is mapped; metadata strings and tensor bytes are views into it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/files/mapped_file.h"

namespace tidepool::files {

// An array of metadata: integers (booleans as 0 and 1), floats, strings or arrays again.
struct GgufArray {
  using Items = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string_view>,
                             std::vector<GgufArray>>;
  Items items;
};
// uint64 values beyond 2^63 - 1 are refused; none is in use.
using GgufValue = std::variant<int64_t, double, bool, std::string_view, GgufArray>;

enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

struct GgufTensor {
  std::string_view name;
  GgufType type = GgufType::kF32;  // may hold a number beside those named above; see GgufTypeName
  std::vector<int64_t> ne;         // extents, the fastest first; 1 to 4 of them, each >= 1
  std::span<const std::byte> bytes;
  [[nodiscard]] int64_t numel() const;
  [[nodiscard]] int64_t rows() const;                // numel / ne[0]
  [[nodiscard]] std::vector<int64_t> shape() const;  // row-major, as elsewhere: ne reversed
};

std::string GgufTypeName(GgufType type);  // "Q4_1", also of types that cannot be dequantised here

// Immutable once open; thread-safe.
class GgufFile {
 public:
  static StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // A file that lies in memory; `bytes` outlives it, `where` takes the place of the path.
  static StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::span<const std::byte> bytes,
                                                       const std::string& where);

  [[nodiscard]] const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  // Typed look-ups; empty where the key is missing or has another type.
  [[nodiscard]] std::optional<int64_t> Int(std::string_view key) const;
  [[nodiscard]] std::optional<double> Float(std::string_view key) const;  // also of an integer
  [[nodiscard]] std::optional<bool> Bool(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> String(std::string_view key) const;
  [[nodiscard]] const std::vector<std::string_view>* Strings(std::string_view key) const;  // null: none
  [[nodiscard]] const std::vector<int64_t>* Ints(std::string_view key) const;

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* Find(std::string_view name) const;  // null: none of that name
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  GgufFile() = default;
  Status Parse();

  std::optional<MappedFile> file_;  // none if the bytes are the caller's
  std::span<const std::byte> bytes_;
  std::string path_;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

// Rows [first_row, first_row + out.size() / ne[0]) of a tensor as float32, exactly the values of the
// `gguf` Python package: with d, m float16 scales and q the stored integer,
//   Q8_0: d q     Q4_0: d (q - 8)     Q4_1: d q + m      (the products are exact in float32)
// kUnimplemented with the type's name for other quantisations. requires the rows to exist and
// out.size() to be a multiple of ne[0].
Status Dequantize(const GgufTensor& tensor, int64_t first_row, std::span<float> out);

}  // namespace tidepool::files
