#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files/safetensors.h"

namespace tidepool::files {
namespace {

using nlohmann::json;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bits;
};
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {DType::kF32, "F32", 32},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kI32, "I32", 32},
    {DType::kI16, "I16", 16},
    {DType::kI8, "I8", 8},
    {DType::kU8, "U8", 8},
    {DType::kBool, "BOOL", 8},
    {DType::kU16, "U16", 16},
    {DType::kU32, "U32", 32},
    {DType::kU64, "U64", 64},
    {DType::kC64, "C64", 64},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kF4, "F4", 4},
}};

std::string Quoted(std::string_view name) {
  std::string shown(name.substr(0, 80));
  return "\"" + shown + (name.size() > 80 ? "...\"" : "\"");
}

// What a value is, for messages.
std::string Kind(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::number_float:
      return "a fraction";
    case json::value_t::number_integer:
      return "a negative number";
    case json::value_t::number_unsigned:
      return "a number";
    default:
      return (value.is_array() || value.is_object() ? "an " : "a ") + std::string(value.type_name());
  }
}

// The header, filled while its JSON is parsed: what was read of a tensor is not kept by the parser, and what
// the format does not name is never stored.
class HeaderReader {
 public:
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::string error;  // the first

  // nlohmann::json::parser_callback_t: false drops the value.
  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (!error.empty()) return false;
    const bool begins =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (event == json::parse_event_t::key) return Key(depth, value.get_ref<const std::string&>());
    if (depth == 1 && event == json::parse_event_t::object_end) return Object(value), false;
    if (depth == 1 && (event == json::parse_event_t::array_start || event == json::parse_event_t::value))
      return Fail("the value of " + Quoted(name_) + " is " + (begins ? "an array" : Kind(value)) +
                  ", expected an object");
    // Said where it begins: the parser would keep all of it, and look through it again at every further item.
    if (depth == 2 && begins && name_ == "__metadata__")
      return Fail("__metadata__ has " +
                  std::string(event == json::parse_event_t::array_start ? "an array" : "an object") +
                  " under " + Quoted(field_) + ", expected a string");
    if (depth == 3 && event == json::parse_event_t::value && !field_.empty() && !value.is_number_unsigned())
      return Fail(Tensor() + ": field " + Quoted(field_) + " holds " + Kind(value));
    if (depth == 3 && begins && !field_.empty())
      return Fail(Tensor() + ": field " + Quoted(field_) + " holds " +
                  (event == json::parse_event_t::array_start ? "an array" : "an object"));
    return true;
  }

 private:
  bool Fail(std::string message) {
    error = std::move(message);
    return false;
  }
  [[nodiscard]] std::string Tensor() const { return "tensor " + Quoted(name_); }

  bool Key(int depth, const std::string& key) {
    if (depth == 1) {
      name_ = key;
      field_.clear();
      fields_.clear();
      return names_.insert(key).second || Fail("the name " + Quoted(key) + " appears twice");
    }
    if (depth > 2) return false;
    const bool fresh = fields_.insert(key).second;
    if (name_ == "__metadata__") {
      field_ = key;
      return fresh || Fail("__metadata__ has the key " + Quoted(key) + " twice");
    }
    if (!fresh) return Fail(Tensor() + ": field " + Quoted(key) + " twice");
    // A field of a tensor that the format does not name is passed over, as the reference reader does.
    field_ = key == "dtype" || key == "shape" || key == "data_offsets" ? key : "";
    return !field_.empty();
  }

  void Object(const json& value) {
    if (name_ != "__metadata__") {
      ReadTensor(value, tensors.emplace_back());
      return;
    }
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        Fail("__metadata__ has " + Kind(text) + " under " + Quoted(key) + ", expected a string");
        return;
      }
      metadata[key] = text.get<std::string>();
    }
  }

  bool ReadTensor(const json& value, TensorInfo& tensor) {
    tensor.name = name_;
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(field)) return Fail(Tensor() + " has no " + field);
    }
    if (!value["dtype"].is_string()) return Holds("dtype", value["dtype"]);
    const std::optional<DType> dtype = ParseDType(value["dtype"].get_ref<const std::string&>());
    if (!dtype) return Fail(Tensor() + ": unknown dtype " + Quoted(value["dtype"].get<std::string>()));
    tensor.dtype = *dtype;
    std::vector<int64_t> offsets;
    if (!ReadNumbers(value, "shape", tensor.shape) || !ReadNumbers(value, "data_offsets", offsets))
      return false;
    if (offsets.size() != 2) {
      return Fail(Tensor() + ": data_offsets " +
                  (offsets.size() > 2 ? "has more than two numbers" : "is not two numbers"));
    }
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    return true;
  }

  bool ReadNumbers(const json& value, const char* field, std::vector<int64_t>& numbers) {
    if (!value[field].is_array()) return Holds(field, value[field]);
    for (const json& number : value[field]) {
      if (!number.is_number_unsigned()) return Holds(field, number);
      if (number.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        return Fail(Tensor() + " has a number beyond 2^63");
      numbers.push_back(number.get<int64_t>());
    }
    return true;
  }
  bool Holds(const std::string& field, const json& value) {
    return Fail(Tensor() + ": field " + Quoted(field) + " holds " + Kind(value));
  }

  std::string name_, field_;  // where the parser stands
  std::set<std::string> names_, fields_;
};

// Bytes of a tensor, or nothing if the product overflows or is no whole number of bytes.
std::optional<int64_t> BytesOf(const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  int64_t bits = 0;
  if (__builtin_mul_overflow(count, DTypeBits(tensor.dtype), &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

Status CheckLayout(std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t expected = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string name = where + ": tensor " + Quoted(tensor.name);
    const std::optional<int64_t> bytes = BytesOf(tensor);
    if (!bytes) return InvalidArgument(name + ": its shape is too large or no whole number of bytes");
    if (tensor.begin != expected) {
      return InvalidArgument(name + " starts at byte " + std::to_string(tensor.begin) + ", expected " +
                             std::to_string(expected) +
                             ": tensors must cover the data without hole or overlap");
    }
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
      return InvalidArgument(name + ": data_offsets " + std::to_string(tensor.begin) + " to " +
                             std::to_string(tensor.end) + ", but shape and dtype need " +
                             std::to_string(*bytes) + " bytes");
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    return InvalidArgument(where + ": the tensors end at byte " + std::to_string(expected) +
                           " of the data, the file at byte " + std::to_string(data_bytes) +
                           "; it is cut short or has something appended");
  }
  return OkStatus();
}

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
int64_t DTypeBits(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> prefix, int64_t file_bytes,
                                                   const std::string& where) {
  if (prefix.size() < 8 || file_bytes < 8) {
    return InvalidArgument(where + ": has " + std::to_string(file_bytes) +
                           " bytes; a safetensors file begins with an 8-byte header length");
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | static_cast<uint8_t>(prefix[static_cast<size_t>(i)]);
  if (length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax)) {
    return InvalidArgument(where + ": the header length is " + std::to_string(length) + ", at most " +
                           std::to_string(kSafetensorsHeaderBytesMax) +
                           " is allowed; is it a safetensors file?");
  }
  if (length > static_cast<uint64_t>(file_bytes) - 8 || length > prefix.size() - 8) {
    return InvalidArgument(where + ": the header length is " + std::to_string(length) + ", but only " +
                           std::to_string(file_bytes - 8) + " bytes follow; the file is cut short");
  }
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()) + 8, static_cast<size_t>(length));
  if (text.empty() || text[0] != '{') {
    return InvalidArgument(where + ": the header does not begin with '{'; is it a safetensors file?");
  }
  // The parser takes a NUL for the end of its input; the format pads with spaces.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument(where + ": the header has a NUL at byte " + std::to_string(nul) +
                           "; it is JSON, padded with spaces");
  }
  HeaderReader reader;
  try {
    (void)json::parse(text.begin(), text.end(), std::ref(reader));
  } catch (const json::parse_error& e) {
    return InvalidArgument(where + ": the header is no UTF-8 JSON (byte " + std::to_string(e.byte) +
                           " of it): " + e.what());
  } catch (const std::exception& e) {  // the library's own, such as bad_alloc
    return InvalidArgument(where + ": cannot read the header: " + e.what());
  }
  if (!reader.error.empty()) return InvalidArgument(where + ": " + reader.error);

  SafetensorsHeader header;
  header.tensors = std::move(reader.tensors);
  header.metadata = std::move(reader.metadata);
  header.data_begin = 8 + static_cast<int64_t>(length);
  TP_RETURN_IF_ERROR(CheckLayout(header.tensors, file_bytes - header.data_begin, where));
  return header;
}

}  // namespace tidepool::files
