#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/files/safetensors.h"

namespace tidepool::files {
namespace {

constexpr int64_t kIndexBytesMax = 100'000'000;

// A name that cannot lead out of the folder.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find('/') == std::string_view::npos && name.find('\\') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

StatusOr<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::Open(const std::string& folder) {
  auto result = std::unique_ptr<SafetensorsFolder>(new SafetensorsFolder());
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    TP_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(single));
    for (const TensorInfo& info : file->tensors()) result->entries_[info.name] = {file.get(), &info};
    result->files_.push_back(std::move(file));
    return result;
  }
  if (!std::filesystem::exists(index, ignored)) {
    return NotFound(folder +
                    ": has neither model.safetensors nor model.safetensors.index.json; give a Hugging "
                    "Face model folder with safetensors weights");
  }
  TP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index, kIndexBytesMax));
  TP_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject<nlohmann::json>(text, index));
  if (!json.contains("weight_map") || !json["weight_map"].is_object())
    return InvalidArgument(index + ": has no object \"weight_map\"");
  std::map<std::string, SafetensorsFile*> shards;
  for (const auto& [name, shard_name] : json["weight_map"].items()) {
    if (!shard_name.is_string() || !IsPlainFileName(shard_name.get_ref<const std::string&>())) {
      return InvalidArgument(index + ": weight_map." + name +
                             " does not name a plain file inside the folder");
    }
    const auto& shard = shard_name.get_ref<const std::string&>();
    SafetensorsFile*& file = shards[shard];
    if (file == nullptr) {
      TP_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> opened,
                          SafetensorsFile::Open(folder + "/" + shard));
      file = opened.get();
      result->files_.push_back(std::move(opened));
    }
    const TensorInfo* info = file->Find(name);
    if (info == nullptr) {
      return InvalidArgument(index + ": says that " + shard + " has the tensor \"" + name +
                             "\", but it has not; the folder is incomplete or mixed from two models");
    }
    result->entries_[name] = {file, info};
  }
  return result;
}

std::optional<SafetensorsFolder::Entry> SafetensorsFolder::Find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

std::string SafetensorsFolder::Digest() const {
  uint64_t digest = 0;
  for (const auto& [name, entry] : entries_) {
    const uint64_t salt =
        Hash64(name + " " + std::string(DTypeName(entry.info->dtype)) + ShapeText(entry.info->shape));
    digest = Mix64(digest ^ salt) + SaltedSum(entry.bytes(), salt);
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, digest);
  return text;
}

}  // namespace tidepool::files
