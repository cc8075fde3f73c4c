#include "core/files/safetensors.h"

#include <utility>

namespace tidepool::files {

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
