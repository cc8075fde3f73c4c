#include "core/files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/files/float_formats.h"

namespace tidepool::files {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are copied as they lie in the file");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int kArrayDepthMax = 4;
constexpr size_t kDimensionsMax = 4;       // GGML_MAX_DIMS
constexpr uint64_t kNameBytesMax = 65535;  // keys, by the specification

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct TypeRow {
  uint32_t id;
  const char* name;
  int64_t block_values;
  int64_t block_bytes;
};
constexpr TypeRow kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};
const TypeRow* FindType(uint32_t id) {
  for (const TypeRow& row : kTypes) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

// Reads forward through the file. After the first failure every call fails with the same error.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  Status Read(T* value, const char* what) {
    TP_RETURN_IF_ERROR(Need(sizeof(T), what));
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return OkStatus();
  }
  Status ReadString(std::string_view* value, uint64_t max_bytes, const char* what) {
    uint64_t length = 0;
    TP_RETURN_IF_ERROR(Read(&length, what));
    if (length > max_bytes) {
      return InvalidArgument(std::string(what) + " of " + std::to_string(length) + " bytes, at most " +
                             std::to_string(max_bytes) + " are allowed");
    }
    TP_RETURN_IF_ERROR(Need(length, what));
    *value = {reinterpret_cast<const char*>(bytes_.data()) + at_, static_cast<size_t>(length)};
    at_ += static_cast<size_t>(length);
    return OkStatus();
  }
  Status Need(uint64_t bytes, const char* what) const {
    if (bytes <= left()) return OkStatus();
    return InvalidArgument("at byte " + std::to_string(at_) + ": " + what + " needs " +
                           std::to_string(bytes) + " bytes, " + std::to_string(left()) +
                           " are left; the file is cut short or damaged");
  }
  [[nodiscard]] uint64_t left() const { return bytes_.size() - at_; }
  [[nodiscard]] uint64_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

// Calls `with` with a 0 of the C++ type that a number of this type is stored as.
template <typename With>
auto WithStored(uint32_t type, const With& with) {
  switch (type) {
    case kUint8:
    case kBool:
      return with(uint8_t{0});
    case kInt8:
      return with(int8_t{0});
    case kUint16:
      return with(uint16_t{0});
    case kInt16:
      return with(int16_t{0});
    case kUint32:
      return with(uint32_t{0});
    case kInt32:
      return with(int32_t{0});
    case kFloat32:
      return with(float{0});
    case kUint64:
      return with(uint64_t{0});
    case kInt64:
      return with(int64_t{0});
    default:
      return with(double{0});
  }
}

// Bytes that a value of a type has at least (a string: its length; an array: type and count); 0: no such
// type.
uint64_t BytesMin(uint32_t type) {
  if (type > kFloat64) return 0;
  if (type == kArray) return 12;
  return type == kString ? 8 : WithStored(type, [](auto stored) { return uint64_t{sizeof(stored)}; });
}

// T: int64_t for integers, else double.
template <typename T>
Status ReadNumber(Cursor& cursor, uint32_t type, T* value) {
  return WithStored(type, [&](auto stored) -> Status {
    TP_RETURN_IF_ERROR(cursor.Read(&stored, "a number"));
    if constexpr (std::is_integral_v<decltype(stored)>) {
      if (std::cmp_greater(stored, INT64_MAX)) return InvalidArgument("a number beyond 2^63 - 1");
    }
    *value = static_cast<T>(stored);
    return OkStatus();
  });
}

Status ReadArray(Cursor& cursor, int depth, GgufArray* array) {
  uint32_t type = 0;
  uint64_t count = 0;
  TP_RETURN_IF_ERROR(cursor.Read(&type, "an array's type"));
  TP_RETURN_IF_ERROR(cursor.Read(&count, "an array's length"));
  const uint64_t bytes_min = BytesMin(type);
  if (bytes_min == 0) return InvalidArgument("unknown array type " + std::to_string(type));
  if (count > cursor.left() / bytes_min) {
    return InvalidArgument("an array of " + std::to_string(count) + " values, but only " +
                           std::to_string(cursor.left()) +
                           " bytes are left; the file is cut short or damaged");
  }
  const auto fill = [&]<typename T>(std::vector<T>& items, const auto& read) {
    items.resize(static_cast<size_t>(count));
    for (T& item : items) TP_RETURN_IF_ERROR(read(&item));
    return OkStatus();
  };
  if (type == kString) {
    return fill(array->items.emplace<std::vector<std::string_view>>(),
                [&](auto* item) { return cursor.ReadString(item, cursor.left(), "a string"); });
  }
  if (type == kArray) {
    if (depth >= kArrayDepthMax)
      return InvalidArgument("arrays nested deeper than " + std::to_string(kArrayDepthMax));
    return fill(array->items.emplace<std::vector<GgufArray>>(),
                [&](auto* item) { return ReadArray(cursor, depth + 1, item); });
  }
  const auto number = [&](auto* item) { return ReadNumber(cursor, type, item); };
  if (type == kFloat32 || type == kFloat64) return fill(array->items.emplace<std::vector<double>>(), number);
  return fill(array->items.emplace<std::vector<int64_t>>(), number);
}

Status ReadValue(Cursor& cursor, GgufValue* value) {
  uint32_t type = 0;
  TP_RETURN_IF_ERROR(cursor.Read(&type, "a value's type"));
  if (BytesMin(type) == 0) return InvalidArgument("unknown value type " + std::to_string(type));
  if (type == kString)
    return cursor.ReadString(&value->emplace<std::string_view>(), cursor.left(), "a string");
  if (type == kArray) return ReadArray(cursor, 1, &value->emplace<GgufArray>());
  if (type == kFloat32 || type == kFloat64) return ReadNumber(cursor, type, &value->emplace<double>());
  int64_t number = 0;
  TP_RETURN_IF_ERROR(ReadNumber(cursor, type, &number));
  *value = number;
  if (type == kBool) *value = number != 0;
  return OkStatus();
}

struct Placed {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

Status ReadTensorInfo(Cursor& cursor, GgufTensor* tensor, Placed* placed) {
  TP_RETURN_IF_ERROR(cursor.ReadString(&tensor->name, kNameBytesMax, "a tensor's name"));
  const auto fail = [&](const std::string& what) {
    return InvalidArgument("tensor \"" + std::string(tensor->name) + "\": " + what);
  };
  uint32_t dimensions = 0;
  TP_RETURN_IF_ERROR(cursor.Read(&dimensions, "a tensor's number of dimensions"));
  if (dimensions < 1 || dimensions > kDimensionsMax) {
    return fail(std::to_string(dimensions) + " dimensions, 1 to 4 are allowed");
  }
  int64_t count = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    uint64_t extent = 0;
    TP_RETURN_IF_ERROR(cursor.Read(&extent, "a tensor's shape"));
    if (extent == 0 || extent > INT64_MAX ||
        __builtin_mul_overflow(count, static_cast<int64_t>(extent), &count)) {
      return fail("its shape has a zero or is too large");
    }
    tensor->ne.push_back(static_cast<int64_t>(extent));
  }
  uint32_t type = 0;
  TP_RETURN_IF_ERROR(cursor.Read(&type, "a tensor's type"));
  TP_RETURN_IF_ERROR(cursor.Read(&placed->offset, "a tensor's offset"));
  tensor->type = static_cast<GgufType>(type);
  const TypeRow* row = FindType(type);
  if (row == nullptr) return fail("unknown tensor type " + std::to_string(type));
  if (tensor->ne[0] % row->block_values != 0) {
    return fail("a row of " + std::to_string(tensor->ne[0]) + " values is no whole number of " + row->name +
                " blocks of " + std::to_string(row->block_values));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count / row->block_values, row->block_bytes, &bytes))
    return fail("it is too large");
  placed->bytes = static_cast<uint64_t>(bytes);
  return OkStatus();
}

}  // namespace

int64_t GgufTensor::numel() const {
  int64_t count = 1;
  for (const int64_t extent : ne) count *= extent;
  return count;
}
int64_t GgufTensor::rows() const { return numel() / ne[0]; }
std::vector<int64_t> GgufTensor::shape() const { return {ne.rbegin(), ne.rend()}; }

std::string GgufTypeName(GgufType type) {
  const TypeRow* row = FindType(static_cast<uint32_t>(type));
  return row == nullptr ? "type " + std::to_string(static_cast<uint32_t>(type)) : row->name;
}

StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  TP_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, FromBytes(mapped.bytes(), path));
  file->file_ = std::move(mapped);  // the mapping stays where it is
  return file;
}

StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(std::span<const std::byte> bytes,
                                                        const std::string& where) {
  auto file = std::unique_ptr<GgufFile>(new GgufFile());
  file->bytes_ = bytes;
  file->path_ = where;
  if (Status status = file->Parse(); !status.ok()) return status.At(where);
  return file;
}

Status GgufFile::Parse() {
  Cursor cursor(bytes_);
  uint32_t magic = 0;
  uint32_t version = 0;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  TP_RETURN_IF_ERROR(cursor.Read(&magic, "the magic number"));
  if (magic != kMagic) return InvalidArgument("does not begin with GGUF; is it a GGUF file?");
  TP_RETURN_IF_ERROR(cursor.Read(&version, "the version"));
  if (version != 3) {
    return Unimplemented("has GGUF version " + std::to_string(version) +
                         ", only version 3, little-endian, is read; convert it again with a newer tool");
  }
  TP_RETURN_IF_ERROR(cursor.Read(&tensor_count, "the number of tensors"));
  TP_RETURN_IF_ERROR(cursor.Read(&value_count, "the number of metadata values"));
  // A value has at least a key's length, a type and a byte; a tensor has at least a name's length, a
  // number of dimensions, one of them, a type and an offset.
  if (value_count > cursor.left() / 13 || tensor_count > cursor.left() / 32) {
    return InvalidArgument("announces " + std::to_string(tensor_count) + " tensors and " +
                           std::to_string(value_count) + " metadata values, more than the file has room for");
  }
  for (uint64_t i = 0; i < value_count; ++i) {
    std::string_view key;
    TP_RETURN_IF_ERROR(cursor.ReadString(&key, kNameBytesMax, "a metadata key"));
    GgufValue value;
    if (Status status = ReadValue(cursor, &value); !status.ok()) {
      return status.At("metadata \"" + std::string(key) + "\"");
    }
    if (!metadata_.emplace(key, std::move(value)).second) {
      return InvalidArgument("metadata \"" + std::string(key) + "\" appears twice");
    }
  }
  uint64_t alignment = 32;
  if (metadata_.contains("general.alignment")) {
    const std::optional<int64_t> given = Int("general.alignment");
    if (!given || *given < 1 || *given > (1 << 20) || !std::has_single_bit(static_cast<uint64_t>(*given))) {
      return InvalidArgument("general.alignment is no power of two up to 2^20");
    }
    alignment = static_cast<uint64_t>(*given);
  }
  std::vector<Placed> placed(static_cast<size_t>(tensor_count));
  tensors_.resize(static_cast<size_t>(tensor_count));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TP_RETURN_IF_ERROR(ReadTensorInfo(cursor, &tensors_[i], &placed[i]));
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      return InvalidArgument("tensor \"" + std::string(tensors_[i].name) + "\" appears twice");
    }
  }
  const uint64_t data_begin = (cursor.at() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = bytes_.size() < data_begin ? 0 : bytes_.size() - data_begin;
  std::vector<size_t> order(tensors_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return placed[a].offset < placed[b].offset; });
  uint64_t end = 0;
  for (const size_t i : order) {
    const std::string where = "tensor \"" + std::string(tensors_[i].name) + "\"";
    if (placed[i].offset % alignment != 0) {
      return InvalidArgument(where + ": offset " + std::to_string(placed[i].offset) + " is no multiple of " +
                             std::to_string(alignment));
    }
    if (placed[i].offset < end) {
      return InvalidArgument(where + ": overlaps the tensor before it");
    }
    if (placed[i].offset > data_bytes || placed[i].bytes > data_bytes - placed[i].offset) {
      return InvalidArgument(where + ": needs " + std::to_string(placed[i].bytes) + " bytes at offset " +
                             std::to_string(placed[i].offset) + ", but the file has " +
                             std::to_string(data_bytes) + " bytes of data; it is cut short or damaged");
    }
    end = placed[i].offset + placed[i].bytes;
    tensors_[i].bytes = bytes_.subspan(static_cast<size_t>(data_begin + placed[i].offset),
                                       static_cast<size_t>(placed[i].bytes));
  }
  return OkStatus();
}

namespace {

// Null where the key is missing or has another type.
template <typename T>
const T* Get(const std::map<std::string_view, GgufValue>& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : std::get_if<T>(&found->second);
}
template <typename T>
std::optional<T> Maybe(const std::map<std::string_view, GgufValue>& metadata, std::string_view key) {
  const T* value = Get<T>(metadata, key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}
template <typename T>
const std::vector<T>* Items(const std::map<std::string_view, GgufValue>& metadata, std::string_view key) {
  const auto* array = Get<GgufArray>(metadata, key);
  return array == nullptr ? nullptr : std::get_if<std::vector<T>>(&array->items);
}

}  // namespace

std::optional<int64_t> GgufFile::Int(std::string_view key) const { return Maybe<int64_t>(metadata_, key); }
std::optional<double> GgufFile::Float(std::string_view key) const {
  if (const std::optional<int64_t> whole = Int(key)) return static_cast<double>(*whole);
  return Maybe<double>(metadata_, key);
}
std::optional<bool> GgufFile::Bool(std::string_view key) const { return Maybe<bool>(metadata_, key); }
std::optional<std::string_view> GgufFile::String(std::string_view key) const {
  return Maybe<std::string_view>(metadata_, key);
}
const std::vector<std::string_view>* GgufFile::Strings(std::string_view key) const {
  return Items<std::string_view>(metadata_, key);
}
const std::vector<int64_t>* GgufFile::Ints(std::string_view key) const {
  return Items<int64_t>(metadata_, key);
}

const GgufTensor* GgufFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

// --- values ---

namespace {

uint16_t Load16(const std::byte* p) {
  uint16_t value = 0;
  std::memcpy(&value, p, 2);
  return value;
}

// Blocks hold 32 values. In the 4-bit types byte i has value i in its low and value i + 16 in its
// high half.
void Q8_0(const std::byte* p, std::span<float> out) {
  for (size_t at = 0; at < out.size(); at += 32, p += 34) {
    const float d = Fp16ToFloat(Load16(p));
    for (size_t i = 0; i < 32; ++i) out[at + i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
  }
}
// d (q - 8), or with a minimum m behind d: d q + m.
template <bool minimum>
void Q4(const std::byte* p, std::span<float> out) {
  constexpr size_t kScales = minimum ? 4 : 2;
  for (size_t at = 0; at < out.size(); at += 32, p += kScales + 16) {
    const float d = Fp16ToFloat(Load16(p)), m = minimum ? Fp16ToFloat(Load16(p + 2)) : 0;
    const auto value = [&](int q) {
      return minimum ? d * static_cast<float>(q) + m : d * static_cast<float>(q - 8);
    };
    for (size_t i = 0; i < 16; ++i) {
      const auto byte = static_cast<int>(p[kScales + i]);
      out[at + i] = value(byte & 15);
      out[at + i + 16] = value(byte >> 4);
    }
  }
}

}  // namespace

Status Dequantize(const GgufTensor& tensor, int64_t first_row, std::span<float> out) {
  const TypeRow* row = FindType(static_cast<uint32_t>(tensor.type));
  TP_CHECK(row != nullptr && out.size() % static_cast<size_t>(tensor.ne[0]) == 0)
      << GgufTypeName(tensor.type) << ", " << out.size() << " values for rows of " << tensor.ne[0];
  const auto row_bytes = static_cast<size_t>(tensor.ne[0] / row->block_values * row->block_bytes);
  const size_t begin = static_cast<size_t>(first_row) * row_bytes;
  const size_t bytes = out.size() / static_cast<size_t>(tensor.ne[0]) * row_bytes;
  TP_CHECK(first_row >= 0 && begin + bytes <= tensor.bytes.size())
      << "rows from " << first_row << " in " << tensor.rows();
  const std::byte* p = tensor.bytes.data() + begin;
  switch (tensor.type) {
    case GgufType::kF32:
      std::memcpy(out.data(), p, bytes);
      return OkStatus();
    case GgufType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = Fp16ToFloat(Load16(p + 2 * i));
      return OkStatus();
    case GgufType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = Bf16ToFloat(Load16(p + 2 * i));
      return OkStatus();
    case GgufType::kQ8_0:
      Q8_0(p, out);
      return OkStatus();
    case GgufType::kQ4_0:
      Q4<false>(p, out);
      return OkStatus();
    case GgufType::kQ4_1:
      Q4<true>(p, out);
      return OkStatus();
  }
  return Unimplemented("tensor \"" + std::string(tensor.name) + "\" is " + GgufTypeName(tensor.type) +
                       "; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can be read");
}

}  // namespace tidepool::files
