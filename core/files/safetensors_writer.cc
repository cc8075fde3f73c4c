#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/files/safetensors.h"

namespace tidepool::files {
namespace {

StatusOr<int64_t> BytesOf(const TensorSource& tensor) {
  int64_t bits = DTypeBits(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(bits, extent, &bits)) {
      return InvalidArgument("tensor \"" + tensor.name + "\": its shape is negative or too large");
    }
  }
  if (bits % 8 != 0) {
    return InvalidArgument("tensor \"" + tensor.name + "\": its size is no whole number of bytes");
  }
  return bits / 8;
}

}  // namespace

TensorSource SourceOf(std::string name, DType dtype, std::vector<int64_t> shape,
                      std::span<const std::byte> bytes) {
  return {std::move(name), dtype, std::move(shape),
          [bytes](const WriteBytes& write) { return write(bytes); }};
}

Status WriteSafetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  std::set<std::string> names = {"__metadata__"};
  std::vector<int64_t> sizes;
  int64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(path + ": tensor name \"" + tensor.name + "\" is reserved or given twice");
    }
    StatusOr<int64_t> bytes = BytesOf(tensor);
    if (!bytes.ok()) return bytes.status().At(path);
    int64_t end = 0;
    if (__builtin_add_overflow(offset, *bytes, &end)) {
      return InvalidArgument(path + ": the tensors are too large together");
    }
    header[tensor.name] = {{"dtype", std::string(DTypeName(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    sizes.push_back(*bytes);
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const std::exception& e) {  // a name that is no UTF-8
    return InvalidArgument(path + ": cannot write the header: " + e.what());
  }
  // Padded with spaces so that the data starts at a multiple of 8 bytes, as the reference writer does.
  text.append((8 - text.size() % 8) % 8, ' ');
  if (static_cast<int64_t>(text.size()) > kSafetensorsHeaderBytesMax) {
    return InvalidArgument(path + ": the header has " + std::to_string(text.size()) + " bytes, at most " +
                           std::to_string(kSafetensorsHeaderBytesMax) + " are allowed; write shards");
  }
  std::array<std::byte, 8> length{};
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));

  TP_ASSIGN_OR_RETURN(PendingFile file, PendingFile::Create(path));
  TP_RETURN_IF_ERROR(file.Write(length));
  TP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text))));
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t left = sizes[i];
    TP_RETURN_IF_ERROR(tensors[i].produce([&](std::span<const std::byte> bytes) -> Status {
      left -= static_cast<int64_t>(bytes.size());
      if (left < 0) return InvalidArgument(path + ": tensor \"" + tensors[i].name + "\" gave too many bytes");
      return file.Write(bytes);
    }));
    if (left != 0) {
      return InvalidArgument(path + ": tensor \"" + tensors[i].name + "\" gave " + std::to_string(left) +
                             " bytes less than its shape needs");
    }
  }
  return file.Commit();
}

Status WriteSafetensorsFolder(const std::string& folder, const std::vector<TensorSource>& tensors,
                              int64_t max_shard_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  int64_t total = 0;
  int64_t filled = 0;
  for (const TensorSource& tensor : tensors) {
    StatusOr<int64_t> bytes = BytesOf(tensor);
    if (!bytes.ok()) return bytes.status().At(folder);
    if (!shards.back().empty() && filled > max_shard_bytes - std::min(*bytes, max_shard_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += *bytes;
    total += *bytes;
  }
  if (shards.size() == 1) return WriteSafetensors(folder + "/model.safetensors", shards[0]);

  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", total}};
  index["weight_map"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    TP_RETURN_IF_ERROR(WriteSafetensors(folder + "/" + name, shards[i]));
    for (const TensorSource& tensor : shards[i]) index["weight_map"][tensor.name] = name;
  }
  return WriteSmallFile(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace tidepool::files
