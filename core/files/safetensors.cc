#include "core/files/safetensors.h"

#include <cstring>
#include <utility>

#include "core/files/float_formats.h"

namespace tidepool::files {

bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

void ConvertFloats(DType from, const std::byte* in, int64_t n, DType to, std::byte* out) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n * DTypeBits(to) / 8));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    float value = 0;
    if (from == DType::kF32) {
      std::memcpy(&value, in + i * 4, 4);
    } else if (from == DType::kF64) {
      double wide = 0;
      std::memcpy(&wide, in + i * 8, 8);
      value = static_cast<float>(wide);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, in + i * 2, 2);
      value = from == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
    }
    if (to == DType::kF32) {
      std::memcpy(out + i * 4, &value, 4);
    } else if (to == DType::kF64) {
      const double wide = value;
      std::memcpy(out + i * 8, &wide, 8);
    } else {
      const uint16_t bits = to == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
      std::memcpy(out + i * 2, &bits, 2);
    }
  }
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {
  by_name_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  TP_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  TP_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(file.bytes(), static_cast<int64_t>(file.bytes().size()), path));
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(std::move(file), std::move(header)));
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::Bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(header_.data_begin + tensor.begin),
                               static_cast<size_t>(tensor.end - tensor.begin));
}

}  // namespace tidepool::files
