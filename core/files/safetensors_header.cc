// The header's JSON is read as a stream of events (SAX), so that duplicate keys are seen and nothing
// is allocated for what is not wanted.

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files/safetensors.h"

namespace tidepool::files {
namespace {

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

// One pass over the header. Every callback returns false to stop, with `error` set.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_float(double, const std::string&) override { return Scalar("a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return Scalar("binary data"); }
  bool number_integer(int64_t) override { return Scalar("a negative number"); }

  bool number_unsigned(uint64_t value) override {
    if (ignored_ > 0) return true;
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Scalar("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) return Fail(Tensor() + " has a number beyond 2^63");
    if (place_ == Place::kOffsets) {
      if (offsets_.size() == 2) return Fail(Tensor() + ": data_offsets has more than two numbers");
      offsets_.push_back(static_cast<int64_t>(value));
    } else {
      tensors.back().shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (ignored_ > 0) return true;
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      const std::optional<DType> dtype = ParseDType(value);
      if (!dtype) return Fail(Tensor() + ": unknown dtype " + Quoted(value));
      tensors.back().dtype = *dtype;
      return true;
    }
    return Scalar("a string");
  }

  bool key(std::string& value) override {
    if (ignored_ > 0) return true;
    key_ = value;
    switch (place_) {
      case Place::kTop:
        if (!names_.insert(value).second) return Fail("the name " + Quoted(value) + " appears twice");
        return true;
      case Place::kMetadata:
        if (metadata.contains(value)) {
          return Fail("__metadata__ has the key " + Quoted(value) + " twice");
        }
        return true;
      default:
        if (!fields_.insert(value).second) return Fail(Tensor() + ": field " + Quoted(value) + " twice");
        return true;
    }
  }

  bool start_object(size_t) override {
    if (ignored_ > 0) return Ignore();
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        if (key_ == "__metadata__") {
          place_ = Place::kMetadata;
          return true;
        }
        place_ = Place::kTensor;
        tensors.emplace_back().name = key_;
        fields_.clear();
        offsets_.clear();
        return true;
      default:
        return OpenUnknown("an object");
    }
  }

  bool end_object() override {
    if (ignored_ > 0) return --ignored_, true;
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) return Fail(Tensor() + " has no " + field);
      }
      if (offsets_.size() != 2) return Fail(Tensor() + ": data_offsets is not two numbers");
      tensors.back().begin = offsets_[0];
      tensors.back().end = offsets_[1];
    }
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (ignored_ > 0) return Ignore();
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return OpenUnknown("an array");
  }

  bool end_array() override {
    if (ignored_ > 0) return --ignored_, true;
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    return Fail("the header is no UTF-8 JSON (byte " + std::to_string(position) + " of it): " + e.what());
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool Fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool Ignore() { return ++ignored_, true; }
  std::string Tensor() const { return "tensor " + Quoted(tensors.back().name); }

  // A field of a tensor that the format does not name is passed over, as the reference reader does.
  bool UnknownField() const {
    return place_ == Place::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets";
  }
  bool OpenUnknown(const char* what) { return UnknownField() ? Ignore() : Scalar(what); }
  bool Scalar(const char* what) {
    if (ignored_ > 0 || UnknownField()) return true;
    switch (place_) {
      case Place::kStart:
        return Fail(std::string("the header is ") + what + ", expected an object");
      case Place::kTop:
        return Fail("the value of " + Quoted(key_) + " is " + what + ", expected an object");
      case Place::kMetadata:
        return Fail("__metadata__ has " + std::string(what) + " under " + Quoted(key_) +
                    ", expected a string");
      default:
        return Fail(Tensor() + ": field " + Quoted(key_) + " holds " + what);
    }
  }

  Place place_ = Place::kStart;
  int64_t ignored_ = 0;  // depth inside a field that is passed over
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<int64_t> offsets_;
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
  HeaderEvents events;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  } catch (const std::exception& e) {  // the library's own, such as bad_alloc
    return InvalidArgument(where + ": cannot read the header: " + e.what());
  }
  if (!parsed || !events.error.empty()) return InvalidArgument(where + ": " + events.error);

  SafetensorsHeader header;
  header.tensors = std::move(events.tensors);
  header.metadata = std::move(events.metadata);
  header.data_begin = 8 + static_cast<int64_t>(length);
  TP_RETURN_IF_ERROR(CheckLayout(header.tensors, file_bytes - header.data_begin, where));
  return header;
}

}  // namespace tidepool::files
