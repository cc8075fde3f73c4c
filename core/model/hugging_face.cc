#include "core/model/hugging_face.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/json_text.h"
#include "core/files/mapped_file.h"
#include "core/files/safetensors.h"
#include "core/model/adapter_files.h"
#include "core/model/gguf_folder.h"
#include "core/model/weights.h"

namespace tidepool::model {
namespace {

constexpr int64_t kConfigBytesMax = int64_t{16} << 20;

}  // namespace

StatusOr<std::unique_ptr<Weights>> LoadHuggingFace(const std::string& folder, DType dtype,
                                                   std::span<std::byte> arena) {
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(folder));
  return LoadTensors(spec, folder, dtype, arena);
}

StatusOr<std::unique_ptr<Weights>> LoadTensors(const ModelSpec& spec, const std::string& folder, DType dtype,
                                               std::span<std::byte> arena) {
  if (HoldsGguf(folder)) {
    TP_ASSIGN_OR_RETURN(const GgufFolder gguf, GgufFolder::Open(folder));
    TP_ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, Weights::Create(spec, dtype, arena));
    TP_RETURN_IF_ERROR(gguf.Read(dtype, weights->bytes()));
    return weights;
  }
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  // Before anything is allocated: the files must hold what the config promises.
  TP_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> tensors, FindTensors(folder, spec, *stored));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, Weights::Create(spec, dtype, arena));
  for (const HuggingFaceTensor& t : tensors) {
    const auto entry = stored->Find(t.name);
    const Parameter& p = weights->layout()[static_cast<size_t>(t.index)];
    const int64_t row = p.numel() / p.shape[0], n = entry->info->numel();
    const std::byte* in = entry->bytes().data();
    std::byte* out = weights->bytes().data() + (p.offset + t.row * row) * Bytes(dtype);
    const int64_t in_bytes = files::DTypeBits(entry->info->dtype) / 8;
    at::parallel_for(0, n, 1 << 18, [&](int64_t begin, int64_t end) {
      files::ConvertFloats(entry->info->dtype, in + begin * in_bytes, end - begin, StoredType(dtype),
                           out + begin * Bytes(dtype));
    });
    entry->file->Discard(*entry->info);  // or the mapped file would stand beside the weights until the end
  }
  return weights;
}

StatusOr<std::unique_ptr<Weights>> LoadAdapter(const std::string& folder, std::shared_ptr<const Weights> base,
                                               const AdapterSpec& wanted) {
  TP_ASSIGN_OR_RETURN(const AdapterFolder stored, AdapterFolder::Open(folder));
  TP_RETURN_IF_ERROR(stored.CheckSpec(wanted));
  TP_RETURN_IF_ERROR(stored.CheckShapes(base->spec()));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, Weights::Adapt(std::move(base), wanted));
  stored.Read(weights->spec(), weights->dtype(), weights->bytes());
  return weights;
}

namespace {

// Does the tensor of the source, read in the weights' type, have these bytes?
bool HasValues(const files::SafetensorsFolder::Entry& stored, DType dtype, std::span<const std::byte> bytes) {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<std::byte> converted(static_cast<size_t>(kPiece * Bytes(dtype)));
  const int64_t in_bytes = files::DTypeBits(stored.info->dtype) / 8, n = stored.info->numel();
  for (int64_t from = 0; from < n; from += kPiece) {
    const int64_t count = std::min(kPiece, n - from);
    files::ConvertFloats(stored.info->dtype, stored.bytes().data() + from * in_bytes, count,
                         StoredType(dtype), converted.data());
    if (std::memcmp(converted.data(), bytes.data() + from * Bytes(dtype),
                    static_cast<size_t>(count * Bytes(dtype))) != 0)
      return false;
  }
  return true;
}

// config.json and generation_config.json of the source; with `dtype` that is the type they name.
Status CopyConfigFiles(const std::string& source, const std::string& folder, const char* dtype) {
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(source + "/config.json", kConfigBytesMax));
  TP_ASSIGN_OR_RETURN(auto config, ParseJsonObject<nlohmann::ordered_json>(text, source + "/config.json"));
  if (dtype != nullptr) config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
  const StatusOr<std::string> generation =
      files::ReadSmallFile(source + "/generation_config.json", kConfigBytesMax);
  if (generation.ok()) {
    TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/generation_config.json", *generation));
  } else if (generation.status().code() != StatusCode::kNotFound) {
    return generation.status();
  }
  return files::WriteSmallFile(folder + "/config.json", dtype == nullptr ? text : config.dump(2) + "\n");
}

}  // namespace

Status SaveHuggingFace(const Weights& weights, const std::string& folder, int64_t max_shard_bytes,
                       const std::string& source) {
  if (max_shard_bytes < 1) return InvalidArgument(folder + ": max_shard_bytes must be above 0");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FailedPrecondition(folder + ": cannot create the folder: " + error.message());
  std::unique_ptr<files::SafetensorsFolder> stored;
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(weights.spec(), ExpertTensors::kOneByOne);
  if (!source.empty()) {
    TP_ASSIGN_OR_RETURN(stored, files::SafetensorsFolder::Open(source));
    TP_ASSIGN_OR_RETURN(tensors, FindTensors(source, weights.spec(), *stored));
  }
  std::vector<files::TensorSource> sources;
  const int64_t size = Bytes(weights.dtype());
  bool untrained = stored != nullptr;
  std::set<std::string> needed;
  for (const HuggingFaceTensor& t : tensors) {
    const Parameter& p = weights.layout()[static_cast<size_t>(t.index)];
    const int64_t row = p.numel() / p.shape[0],
                  numel = std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>());
    const auto bytes = weights.bytes().subspan(static_cast<size_t>((p.offset + t.row * row) * size),
                                               static_cast<size_t>(numel * size));
    needed.insert(t.name);
    if (stored != nullptr) {
      const auto entry = stored->Find(t.name);
      if (HasValues(*entry, weights.dtype(), bytes)) {
        sources.push_back(files::SourceOf(t.name, entry->info->dtype, t.shape, entry->bytes()));
        continue;
      }
    }
    untrained = false;
    sources.push_back(files::SourceOf(t.name, StoredType(weights.dtype()), t.shape, bytes));
  }
  if (untrained) {
    for (const auto& [name, entry] : stored->tensors()) {
      if (!needed.contains(name))
        sources.push_back(files::SourceOf(name, entry.info->dtype, entry.info->shape, entry.bytes()));
    }
  }
  std::sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  TP_RETURN_IF_ERROR(files::WriteSafetensorsFolder(folder, sources, max_shard_bytes));
  // Last, so that a folder with a config.json is whole.
  if (stored == nullptr) return WriteConfigFiles(weights.spec(), weights.dtype(), folder);
  return CopyConfigFiles(source, folder,
                         untrained                            ? nullptr
                         : weights.dtype() == DType::kFloat32 ? "float32"
                                                              : "bfloat16");
}

}  // namespace tidepool::model
