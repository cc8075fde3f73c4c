#include "core/model/adapter_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/names.h"
#include "core/files/mapped_file.h"
#include "core/model/adapter_modules.h"
#include "core/model/config_reader.h"
#include "core/model/gguf_folder.h"
#include "core/model/hugging_face.h"

namespace tidepool::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTensorPrefix = "base_model.model.";
constexpr const char* kFingerprintKey = "tidepool.base_fingerprint";
constexpr const char* kScoreTensor = "score.weight";
constexpr int64_t kLayersMost = 1 << 16;

// What a tensor is of a matrix. kBase: the matrix itself, which PEFT puts beside the change of an embedding
// or a head. kScore: a value head, in the place of the head.
enum class Which : uint8_t { kA, kB, kBase, kScore };

// Of a layer whose experts are changed in both matrices PEFT nests the first one in the second.
std::string TensorName(const AdapterSite& site, Which which, bool nested = false) {
  if (which == Which::kScore) return std::string(kTensorPrefix) + kScoreTensor;
  std::string module = std::string(kTensorPrefix) + ModuleName(site);
  if (OfExperts(site.target)) {
    module.resize(module.rfind('.'));  // that of the parameter
    if (nested && site.target == AdapterTarget::kExpertsGateUp) module += ".base_layer";
  }
  if (which == Which::kBase) return module + ".base_layer.weight";
  const char* half = which == Which::kA ? "A" : "B";
  if (site.target == AdapterTarget::kEmbedding) return module + ".lora_embedding_" + half;
  return module + ".lora_" + half + ".weight";
}

std::string TensorName(const AdapterSite& site, Which which, const ChosenModules& chosen) {
  return TensorName(site, which, chosen.NestsExperts(site.layer));
}

struct AdapterTensor {
  AdapterSite site;
  Which which = Which::kA;
};
std::optional<AdapterTensor> ParseTensorName(std::string_view name, const ChosenModules& chosen) {
  const std::string_view whole = name;
  if (!name.starts_with(kTensorPrefix)) return std::nullopt;
  name.remove_prefix(kTensorPrefix.size());
  if (name == kScoreTensor) return AdapterTensor{{-1, AdapterTarget::kHead}, Which::kScore};
  int64_t layer = -1;
  if (name.starts_with(kLayersPrefix)) {
    name.remove_prefix(kLayersPrefix.size());
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (error != std::errc() || layer < 0 || layer > kLayersMost || end == name.data() + name.size() ||
        *end != '.')
      return std::nullopt;
    name.remove_prefix(static_cast<size_t>(end - name.data()) + 1);
  }
  for (const auto& [target, module] : kAdapterModules) {
    if ((layer < 0) != (target >= AdapterTarget::kEmbedding)) continue;
    // The names of experts' tensors do not tell whose they are.
    if (OfExperts(target) ? !chosen.HasExperts({layer, target}) : !name.starts_with(module)) continue;
    for (const Which which : {Which::kA, Which::kB, Which::kBase}) {
      if (which == Which::kBase && layer >= 0) continue;
      if (TensorName({layer, target}, which, chosen) == whole) return AdapterTensor{{layer, target}, which};
    }
  }
  return std::nullopt;
}

bool SaysNothing(const nlohmann::json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Keys that say nothing of what the adapter computes, or that are read by name; every other one must say
// nothing: it would change the result.
bool KnownKey(const std::string& key) {
  static const std::set<std::string, std::less<>> known = {"auto_mapping",
                                                           "base_model_name_or_path",
                                                           "bias",
                                                           "exclude_modules",
                                                           "inference_mode",
                                                           "init_lora_weights",
                                                           "layers_pattern",
                                                           "layers_to_transform",
                                                           "lora_alpha",
                                                           "lora_dropout",
                                                           "megatron_core",
                                                           "modules_to_save",
                                                           "peft_type",
                                                           "peft_version",
                                                           "qalora_group_size",
                                                           "r",
                                                           "revision",
                                                           "target_modules",
                                                           "target_parameters",
                                                           "task_type",
                                                           "use_rslora"};
  return known.contains(key);
}

}  // namespace

void FingerprintSum::Add(const std::string& name, const std::vector<int64_t>& shape, files::DType dtype,
                         std::span<const std::byte> all) {
  constexpr int64_t kPieces = 16, kValues = 256;
  std::array<std::byte, static_cast<size_t>(2 * kValues)> piece{};
  hash_.Update(name + files::ShapeText(shape));
  const int64_t bytes = files::DTypeBits(dtype) / 8, n = static_cast<int64_t>(all.size()) / bytes;
  for (int64_t i = 0; i < kPieces; ++i) {
    const int64_t from = n / kPieces * i, count = std::min(kValues, n - from);
    files::ConvertFloats(dtype, all.data() + from * bytes, count, files::DType::kBF16, piece.data());
    hash_.Update(std::span(piece).first(static_cast<size_t>(2 * count)));
  }
}
std::string FingerprintSum::Finish() { return Hex(hash_.Finish()).substr(0, 16); }

StatusOr<std::string> Fingerprint(const std::string& model_folder) {
  if (HoldsGguf(model_folder)) {
    TP_ASSIGN_OR_RETURN(const GgufFolder gguf, GgufFolder::Open(model_folder));
    return gguf.Fingerprint();
  }
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(model_folder));
  FingerprintSum sum;
  for (const auto& [name, entry] : stored->tensors()) {
    if (files::IsFloating(entry.info->dtype))
      sum.Add(name, entry.info->shape, entry.info->dtype, entry.bytes());
  }
  return sum.Finish();
}

StatusOr<AdapterFolder> AdapterFolder::Open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return NotFound(folder + ": is no folder; give one that has " + kAdapterConfigFile);
  const std::string tensors = folder + "/" + kAdapterTensorsFile;
  if (!fs::exists(folder + "/" + kAdapterConfigFile, error))
    return NotFound(folder + ": has no " + kAdapterConfigFile + ", so it is no adapter");
  if (!fs::exists(tensors, error)) {
    if (fs::exists(folder + "/adapter_model.bin", error))
      return Unimplemented(folder +
                           ": has its adapter as a pickled file only; pickles can run code, so they are not "
                           "read: save it as safetensors");
    return NotFound(folder + ": has no " + kAdapterTensorsFile);
  }
  TP_ASSIGN_OR_RETURN(auto file, files::SafetensorsFile::Open(tensors));
  AdapterFolder adapter(folder, std::move(file));
  TP_RETURN_IF_ERROR(adapter.ReadConfig());
  return adapter;
}

Status AdapterFolder::ReadConfig() {
  const std::string path = path_ + "/" + kAdapterConfigFile;
  TP_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(path));
  const ConfigReader config(path, json);
  std::string type, bias, task;
  TP_RETURN_IF_ERROR(config.Text("peft_type", "", type));
  if (type != "LORA")
    return type.empty() ? InvalidArgument(path + ": peft_type is missing; LORA is expected")
                        : config.Missing("peft_type " + type);
  TP_RETURN_IF_ERROR(config.Text("bias", "none", bias));
  if (bias != "none") return config.Missing("bias " + bias);
  TP_RETURN_IF_ERROR(config.Text("task_type", "CAUSAL_LM", task));
  spec_.score = task == "SEQ_CLS";
  if (task != "CAUSAL_LM" && !spec_.score) return config.Missing("task_type " + task);
  if (const auto* saved = config.Find("modules_to_save"); saved != nullptr && !saved->empty()) {
    // PEFT names both for a classifier; of a model there is the one that it has.
    const auto known = [](const nlohmann::json& name) { return name == "score" || name == "classifier"; };
    if (!spec_.score || !saved->is_array() || !std::ranges::all_of(*saved, known))
      return config.Missing("modules_to_save " + saved->dump().substr(0, 80) +
                            (spec_.score ? "" : " without task_type SEQ_CLS"));
  }
  if (const auto* init = config.Find("init_lora_weights"); init != nullptr && !init->is_boolean()) {
    // Others begin with a part of the model's matrices, which is taken out of them.
    const std::string word = init->is_string() ? init->get<std::string>() : init->dump();
    if (word != "gaussian" && word != "eva" && word != "orthogonal")
      return config.Missing("init_lora_weights " + word.substr(0, 80) + ", which changes the model itself,");
    if (word == "gaussian") spec_.init = AdapterInit::kGaussian;
  }
  for (const auto& [key, value] : json.items()) {
    if (!KnownKey(key) && !SaysNothing(value))
      return config.Missing(
          key + " " + value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80));
  }
  TP_RETURN_IF_ERROR(config.Int("r", 8, spec_.rank));
  if (spec_.rank < 1 || spec_.rank > kAdapterRankMost)
    return config.Wrong("r", "1 to " + std::to_string(kAdapterRankMost), json["r"]);
  TP_RETURN_IF_ERROR(config.Number("lora_alpha", 8, spec_.alpha));
  if (spec_.alpha <= 0) return config.Wrong("lora_alpha", "a number above 0", json["lora_alpha"]);
  TP_RETURN_IF_ERROR(config.Bool("use_rslora", false, spec_.rslora));
  TP_RETURN_IF_ERROR(config.Text("base_model_name_or_path", "", base_));
  const auto& metadata = file_->metadata();
  if (const auto found = metadata.find(kFingerprintKey); found != metadata.end())
    fingerprint_ = found->second;

  TP_ASSIGN_OR_RETURN(auto chosen, ChosenModules::Read(config));
  chosen_ = std::make_shared<const ChosenModules>(std::move(chosen));
  std::map<AdapterSite, int> halves;  // 1: A, 2: B
  for (const files::TensorInfo& tensor : file_->tensors()) {
    const auto parsed = ParseTensorName(tensor.name, *chosen_);
    if (!parsed)
      return Unimplemented(file_->path() + ": the tensor " + tensor.name +
                           " is neither lora_A nor lora_B of q_proj, k_proj, v_proj, o_proj, gate_proj, "
                           "up_proj or down_proj of a layer, nor of experts that target_parameters names, "
                           "nor of embed_tokens or lm_head; others are not implemented");
    if (!files::IsFloating(tensor.dtype))
      return InvalidArgument(file_->path() + ": " + tensor.name + ": dtype " +
                             std::string(files::DTypeName(tensor.dtype)) +
                             ", expected F32, BF16, F16 or F64");
    if (parsed->which == Which::kBase || parsed->which == Which::kScore) continue;
    const bool is_b = parsed->which == Which::kB;
    const int64_t of_rank = tensor.shape.size() == 2 ? tensor.shape[is_b ? 1 : 0] : 0;
    const std::string of =
        (OfExperts(parsed->site.target) ? "a multiple of " : "") + std::to_string(spec_.rank);
    if (OfExperts(parsed->site.target) ? of_rank < 1 || of_rank % spec_.rank != 0 : of_rank != spec_.rank)
      return InvalidArgument(file_->path() + ": " + tensor.name + ": shape " +
                             files::ShapeText(tensor.shape) + ", expected " +
                             (is_b ? "[rows, " + of + "]" : "[" + of + ", columns]") + ", since " +
                             kAdapterConfigFile + " says r " + std::to_string(spec_.rank));
    halves[parsed->site] |= is_b ? 2 : 1;
    layers_ = std::max(layers_, parsed->site.layer + 1);
    if (!spec_.Has(parsed->site.target)) spec_.targets.push_back(parsed->site.target);
  }
  if (halves.empty()) return InvalidArgument(file_->path() + ": has no tensors");
  const std::string score = TensorName({}, Which::kScore);
  if (spec_.score != (file_->Find(score) != nullptr))
    return InvalidArgument(
        file_->path() + ": the tensor " + score +
        (spec_.score ? " is missing, and task_type is SEQ_CLS" : " is there, and task_type is not SEQ_CLS"));
  std::ranges::sort(spec_.targets);
  for (const auto& [site, half] : halves) {
    if (half != 3)
      return InvalidArgument(file_->path() + ": the tensor " +
                             TensorName(site, half == 1 ? Which::kB : Which::kA, *chosen_) + " is missing");
  }
  TP_RETURN_IF_ERROR(chosen_->CheckNames(config, layers_));
  return CheckChosen(layers_, nullptr);
}

Status AdapterFolder::CheckChosen(int64_t layers, const ModelSpec* base) const {
  for (const AdapterSite& site : EverySite(layers)) {
    // Whether a layer has experts is seen where the model is. A tensor of theirs has a name only if it is
    // chosen.
    if (OfExperts(site.target) && (base == nullptr || !chosen_->HasExperts(site))) continue;
    const std::string tensor = TensorName(site, Which::kA, *chosen_);
    const bool there = file_->Find(tensor) != nullptr;
    if (OfExperts(site.target)) {
      if (there == base->IsSparse(site.layer)) continue;
      return InvalidArgument(file_->path() + ": the tensor " + tensor +
                             (there ? " is there, and layer " + std::to_string(site.layer) +
                                          " of the model has no experts: it is an adapter of another model"
                                    : " is missing, and target_parameters of " +
                                          std::string(kAdapterConfigFile) + " chooses " + ModuleName(site)));
    }
    const auto chosen = chosen_->Has(site);
    if (!chosen.ok()) return chosen.status().At(path_ + "/" + kAdapterConfigFile + ": target_modules");
    if (there == *chosen) continue;
    return InvalidArgument(
        file_->path() + ": the tensor " + tensor +
        (there ? " is there, and target_modules of " : " is missing, and target_modules of ") +
        kAdapterConfigFile + " (with exclude_modules and layers_to_transform) " +
        (there ? "does not choose " : "chooses ") + ModuleName(site));
  }
  return OkStatus();
}

int64_t AdapterFolder::parameters() const {
  int64_t count = 0;
  for (const files::TensorInfo& tensor : file_->tensors())
    if (ParseTensorName(tensor.name, *chosen_)->which != Which::kBase) count += tensor.numel();
  return count;
}

Status AdapterFolder::CheckShapes(const ModelSpec& base) const {
  if (layers_ > base.layers)
    return InvalidArgument(file_->path() + ": changes layer " + std::to_string(layers_ - 1) +
                           ", and the model has " + std::to_string(base.layers) +
                           " layers: it is an adapter of another model");
  TP_RETURN_IF_ERROR(CheckAdapter(base, spec_).At(path_));
  TP_RETURN_IF_ERROR(CheckChosen(base.layers, &base));
  for (const files::TensorInfo& tensor : file_->tensors()) {
    const AdapterTensor at = *ParseTensorName(tensor.name, *chosen_);
    if (at.which == Which::kBase && !spec_.Has(at.site.target))
      return Unimplemented(file_->path() + ": " + tensor.name +
                           ": a matrix that the adapter does not change is saved with it; tensors that take "
                           "the place of the model's are not implemented");
    const AdapterPlace place = PlaceOf(base, at.site.target);
    const std::vector<int64_t> expected =
        at.which == Which::kScore  ? std::vector{int64_t{1}, base.hidden_size}
        : at.which == Which::kBase ? std::vector{base.vocab_size, base.hidden_size}
        : at.which == Which::kB    ? std::vector{place.n, spec_.rank * place.count}
                                   : std::vector{spec_.rank * place.count, place.k};
    if (tensor.shape != expected)
      return InvalidArgument(file_->path() + ": " + tensor.name + ": shape " +
                             files::ShapeText(tensor.shape) + ", expected " + files::ShapeText(expected) +
                             " by the model, whose matrix is [" + std::to_string(place.n) + ", " +
                             std::to_string(place.k) + "]: it is an adapter of another model");
  }
  return OkStatus();
}

Status AdapterFolder::CheckBase(const std::string& model_folder) const {
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(model_folder));
  TP_RETURN_IF_ERROR(CheckShapes(spec).At(model_folder));
  TP_RETURN_IF_ERROR(CheckSavedMatrices(spec, model_folder));
  if (fingerprint_.empty()) return OkStatus();
  TP_ASSIGN_OR_RETURN(const std::string found, Fingerprint(model_folder));
  if (found == fingerprint_) return OkStatus();
  return InvalidArgument(
      path_ + ": was trained on a model with the fingerprint " + fingerprint_ +
      (base_.empty() ? "" : " (" + base_ + ")") + ", and that of " + model_folder + " is " + found +
      ": its shapes are the same, its values are not; give the model that the adapter was trained on");
}

Status AdapterFolder::CheckSavedMatrices(const ModelSpec& spec, const std::string& model_folder) const {
  for (const files::TensorInfo& tensor : file_->tensors()) {
    const AdapterTensor at = *ParseTensorName(tensor.name, *chosen_);
    if (at.which != Which::kBase) continue;
    const bool head = at.site.target == AdapterTarget::kHead && !spec.tie_embeddings;
    const std::string name =
        ModuleName({-1, head ? AdapterTarget::kHead : AdapterTarget::kEmbedding}) + ".weight";
    // As bfloat16 has them, for either may have been saved rounded.
    const auto narrow = [](const files::TensorInfo& info, std::span<const std::byte> bytes) {
      std::vector<std::byte> out(static_cast<size_t>(2 * info.numel()));
      files::ConvertFloats(info.dtype, bytes.data(), info.numel(), files::DType::kBF16, out.data());
      return out;
    };
    std::vector<std::byte> of_model;
    if (HoldsGguf(model_folder)) {
      TP_ASSIGN_OR_RETURN(const auto gguf, GgufFolder::Open(model_folder));
      TP_ASSIGN_OR_RETURN(of_model, gguf.Narrow(name));
    } else {
      TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(model_folder));
      const auto entry = stored->Find(name);
      if (!entry) return InvalidArgument(model_folder + ": has no tensor " + name);
      of_model = narrow(*entry->info, entry->bytes());
    }
    if (narrow(tensor, file_->Bytes(tensor)) != of_model)
      return InvalidArgument(file_->path() + ": " + tensor.name + ": is not " + name + " of " + model_folder +
                             ": it is an adapter of another model, or the matrix was trained, too, which is "
                             "not implemented");
  }
  return OkStatus();
}

Status AdapterFolder::CheckSpec(const AdapterSpec& wanted) const {
  const auto text = [](const AdapterSpec& s) {
    char scale[64];
    std::snprintf(scale, sizeof(scale), "%lld, alpha %g%s", static_cast<long long>(s.rank), s.alpha,
                  s.rslora ? ", rslora" : "");
    return "rank " + std::string(scale) + ", targets " +
           Listed(s.targets, [](AdapterTarget target) { return std::string_view(Name(target)); }) +
           (s.score ? ", with a reward model's head" : "");
  };
  AdapterSpec same = spec_;
  same.init = wanted.init;  // of what is there already
  if (same == wanted) return OkStatus();
  return InvalidArgument(path_ + ": has " + text(spec_) + ", and the config says " + text(wanted) +
                         "; an adapter keeps its form: write what the folder has");
}

namespace {

// Where the two halves of the change of a matrix stand: offsets of elements in the layout of the adapter. A
// is there as the folder has it, but for an embedding's; B is turned.
struct Halves {
  AdapterSite site;
  int64_t a = 0, b = 0, n = 0, k = 0, count = 1;
  [[nodiscard]] bool a_is_turned() const { return site.target == AdapterTarget::kEmbedding; }
};
std::vector<Halves> HalvesOf(const ModelSpec& base, const AdapterSpec& adapter) {
  std::map<std::string, int64_t> offsets;
  for (const Parameter& p : AdapterLayout(base, adapter)) offsets[p.name] = p.offset;
  std::vector<Halves> all;
  std::map<std::string, int64_t> before;  // rows of A that targets of the same matrix have taken
  for (const AdapterSite& site : SitesOf(base, adapter.targets)) {
    const std::string at = site.layer < 0 ? "" : "layers." + std::to_string(site.layer) + ".";
    const AdapterPlace place = PlaceOf(base, site.target);
    int64_t& row = before[at + place.matrix];
    all.push_back({site, offsets.at(at + place.matrix + ".a") + row * place.k,
                   offsets.at(at + Name(site.target) + ".b"), place.n, place.k, place.count});
    row += adapter.rank * place.count;
  }
  return all;
}

// [rows, columns] of elements of `size` bytes, turned. Neither need be aligned. Of experts the columns are
// the first one of each expert, then the second ones, as PEFT has them, and become the rows of one expert
// after another; and back.
void Turn(const std::byte* in, int64_t rows, int64_t columns, int64_t size, std::byte* out,
          int64_t experts = 1) {
  const int64_t rank = columns / experts;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(out + (c * rows + r) * size, in + (r * columns + c % rank * experts + c / rank) * size,
                  static_cast<size_t>(size));
}
void TurnBack(const std::byte* in, int64_t rows, int64_t columns, int64_t size, std::byte* out,
              int64_t experts) {
  const int64_t rank = rows / experts;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(out + (c * rows + r % rank * experts + r / rank) * size, in + (r * columns + c) * size,
                  static_cast<size_t>(size));
}

}  // namespace

Status AdapterFolder::CheckFinite() const {
  std::vector<float> values;
  for (const files::TensorInfo& tensor : file_->tensors()) {
    values.resize(static_cast<size_t>(tensor.numel()));
    files::ConvertFloats(tensor.dtype, file_->Bytes(tensor).data(), tensor.numel(), files::DType::kF32,
                         reinterpret_cast<std::byte*>(values.data()));
    if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
      return InvalidArgument(file_->path() + ": " + tensor.name +
                             " has a value that is not finite; the training that made it has diverged, or "
                             "the file is damaged");
  }
  return OkStatus();
}

Status AdapterFolder::CheckTrainable(const ModelSpec& base) const {
  TP_RETURN_IF_ERROR(CheckFinite());
  for (const Halves& at : HalvesOf(base, spec_)) {
    const std::string tensor = TensorName(at.site, Which::kA, *chosen_);
    if (file_->Find(tensor) == nullptr)
      return Unimplemented(file_->path() + ": has no " + tensor +
                           ": an adapter that leaves out layers cannot be trained on, since what it leaves "
                           "out would stay as it is; start with a new one of all layers");
  }
  return OkStatus();
}

void AdapterFolder::Read(const ModelSpec& base, DType dtype, std::span<std::byte> arena) const {
  const int64_t size = Bytes(dtype);
  std::ranges::fill(arena, std::byte{0});  // as it is for layers that are not changed
  std::vector<std::byte> columns;
  for (const Halves& at : HalvesOf(base, spec_)) {
    if (file_->Find(TensorName(at.site, Which::kA, *chosen_)) == nullptr) continue;
    const auto read = [&](Which which, int64_t offset, bool turned) {
      const files::TensorInfo& tensor = *file_->Find(TensorName(at.site, which, *chosen_));
      const std::byte* stored = file_->Bytes(tensor).data();
      std::byte* to = arena.data() + offset * size;
      if (!turned) return files::ConvertFloats(tensor.dtype, stored, tensor.numel(), StoredType(dtype), to);
      columns.resize(static_cast<size_t>(tensor.numel() * size));
      files::ConvertFloats(tensor.dtype, stored, tensor.numel(), StoredType(dtype), columns.data());
      Turn(columns.data(), tensor.shape[0], tensor.shape[1], size, to, at.count);
    };
    read(Which::kA, at.a, at.a_is_turned());
    read(Which::kB, at.b, true);
  }
  if (!spec_.score) return;
  const files::TensorInfo& score = *file_->Find(TensorName({}, Which::kScore));
  files::ConvertFloats(score.dtype, file_->Bytes(score).data(), score.numel(), StoredType(dtype),
                       arena.data() + AdapterLayout(base, spec_).back().offset * size);
}

Status SaveAdapter(const AdapterValues& values, const std::string& model_folder, const std::string& folder) {
  const AdapterSpec& adapter = values.adapter;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FailedPrecondition(folder + ": cannot be made: " + error.message());
  const int64_t size = Bytes(values.dtype), rank = adapter.rank;
  const bool nested = adapter.Has(AdapterTarget::kExpertsGateUp) && adapter.Has(AdapterTarget::kExpertsDown);
  std::vector<files::TensorSource> tensors;
  for (const Halves& at : HalvesOf(values.base, adapter)) {
    const auto put = [&](Which which, int64_t offset, std::vector<int64_t> shape, bool is_turned) {
      const auto half = values.arena.subspan(static_cast<size_t>(offset * size),
                                             static_cast<size_t>(shape[0] * shape[1] * size));
      const std::string name = TensorName(at.site, which, nested);
      if (!is_turned)
        return tensors.push_back(files::SourceOf(name, StoredType(values.dtype), std::move(shape), half));
      tensors.push_back({name, StoredType(values.dtype), shape,
                         [half, rows = shape[1], columns = shape[0], size,
                          count = at.count](const files::WriteBytes& write) {
                           std::vector<std::byte> turned(half.size());
                           TurnBack(half.data(), rows, columns, size, turned.data(), count);
                           return write(turned);
                         }});
    };
    put(Which::kA, at.a, {rank * at.count, at.k}, at.a_is_turned());
    put(Which::kB, at.b, {at.n, rank * at.count}, true);
  }
  if (adapter.score) {
    const Parameter score = AdapterLayout(values.base, adapter).back();
    tensors.push_back(files::SourceOf(TensorName({}, Which::kScore), StoredType(values.dtype), score.shape,
                                      values.arena.subspan(static_cast<size_t>(score.offset * size),
                                                           static_cast<size_t>(score.numel() * size))));
  }
  std::ranges::sort(tensors, {}, &files::TensorSource::name);
  std::map<std::string, std::string> metadata;
  if (!model_folder.empty()) {
    TP_ASSIGN_OR_RETURN(metadata[kFingerprintKey], Fingerprint(model_folder));
  }
  TP_RETURN_IF_ERROR(files::WriteSafetensors(folder + "/" + kAdapterTensorsFile, tensors, metadata));

  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", adapter.score ? "SEQ_CLS" : "CAUSAL_LM"}};
  config["base_model_name_or_path"] = model_folder;
  config["r"] = rank;
  if (adapter.alpha == std::floor(adapter.alpha) && std::abs(adapter.alpha) < 1e15) {
    config["lora_alpha"] = static_cast<int64_t>(adapter.alpha);  // as the reference library has it
  } else {
    config["lora_alpha"] = adapter.alpha;
  }
  config["use_rslora"] = adapter.rslora;
  config["target_modules"] = nlohmann::ordered_json::array();
  for (const auto& [target, module] : kAdapterModules) {
    if (!adapter.Has(target)) continue;
    if (OfExperts(target)) {
      config["target_parameters"].push_back(module);
    } else {
      config["target_modules"].push_back(module.substr(module.find_last_of('.') + 1));
    }
  }
  if (adapter.init == AdapterInit::kGaussian) {
    config["init_lora_weights"] = "gaussian";
  } else {
    config["init_lora_weights"] = true;
  }
  config["bias"] = "none";
  config["lora_dropout"] = 0.0;
  config["fan_in_fan_out"] = config["use_dora"] = false;
  config["inference_mode"] = true;
  config["modules_to_save"] = config["layers_to_transform"] = nullptr;
  if (adapter.score) config["modules_to_save"] = {"score"};
  config["rank_pattern"] = config["alpha_pattern"] = nlohmann::ordered_json::object();
  return files::WriteSmallFile(folder + "/" + kAdapterConfigFile, config.dump(2) + "\n");
}

namespace {

// W + scale B A of a matrix, some rows at a time.
struct MergedMatrix {
  files::SafetensorsFolder::Entry w;
  std::vector<float> a, b;  // [matrices, rank, k], [n, rank]; b has the scale
  int64_t n = 0, k = 0, rank = 0;
  int64_t each = 0;  // rows of a matrix; the next ones have the next rows of a

  Status Write(const files::WriteBytes& write) const {
    constexpr int64_t kRows = 64;
    const int64_t size = files::DTypeBits(w.info->dtype) / 8;
    std::vector<float> rows(static_cast<size_t>(kRows * k));
    std::vector<std::byte> stored(static_cast<size_t>(kRows * k * size));
    for (int64_t row = 0; row < n; row += kRows) {
      const int64_t count = std::min(kRows, n - row);
      auto* values = reinterpret_cast<std::byte*>(rows.data());
      files::ConvertFloats(w.info->dtype, w.bytes().data() + row * k * size, count * k, files::DType::kF32,
                           values);
      for (int64_t i = 0; i < count; ++i) {
        float* sum = rows.data() + i * k;
        for (int64_t r = 0; r < rank; ++r) {
          const float factor = b[static_cast<size_t>((row + i) * rank + r)];
          const float* from = a.data() + ((row + i) / each * rank + r) * k;
          for (int64_t c = 0; c < k; ++c) sum[c] += factor * from[c];
        }
      }
      files::ConvertFloats(files::DType::kF32, values, count * k, w.info->dtype, stored.data());
      TP_RETURN_IF_ERROR(write(std::span(stored).first(static_cast<size_t>(count * k * size))));
    }
    return OkStatus();
  }
};

}  // namespace

Status MergeAdapter(const AdapterFolder& adapter, const std::string& model_folder, const std::string& folder,
                    int64_t max_shard_bytes) {
  if (HoldsGguf(model_folder))
    return Unimplemented(
        model_folder + ": has its weights in blocks (" + kGgufFile +
        "), and what is merged has no place in them; make a folder of bfloat16, which is the "
        "same model: `tidepool import " +
        model_folder + "/" + kGgufFile + " --out FOLDER`, and merge with --model FOLDER");
  TP_RETURN_IF_ERROR(adapter.CheckBase(model_folder));
  TP_RETURN_IF_ERROR(adapter.CheckFinite());
  TP_ASSIGN_OR_RETURN(const ModelSpec spec, ReadSpec(model_folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(model_folder));
  TP_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> places, FindTensors(model_folder, spec, *stored));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FailedPrecondition(folder + ": cannot be made: " + error.message());
  std::vector<float> values(static_cast<size_t>(AdapterElements(spec, adapter.spec())));
  adapter.Read(spec, DType::kFloat32, std::as_writable_bytes(std::span(values)));
  const int64_t rank = adapter.spec().rank;
  const auto scale = static_cast<float>(adapter.spec().scale());
  std::map<std::string, Halves> changed;
  std::map<std::string, std::pair<Halves, int64_t>> experts;  // and the row of the parameter it begins with
  const std::vector<Parameter> layout = Layout(spec);
  for (const Halves& at : HalvesOf(spec, adapter.spec())) {
    if (!OfExperts(at.site.target)) {
      changed[ModuleName(at.site) + ".weight"] = at;
      continue;
    }
    const std::string parameter = "layers." + std::to_string(at.site.layer) + "." + Name(at.site.target);
    for (const HuggingFaceTensor& tensor : places)
      if (layout[static_cast<size_t>(tensor.index)].name == parameter)
        experts[tensor.name] = {at, tensor.row};
  }
  const std::string embedding = ModuleName({-1, AdapterTarget::kEmbedding}) + ".weight",
                    head = ModuleName({-1, AdapterTarget::kHead}) + ".weight";
  // One matrix, of which one use or both are changed, becomes two.
  const bool score = adapter.spec().score;
  const bool unties =
      spec.tie_embeddings && !score && (changed.contains(embedding) || changed.contains(head));
  std::vector<files::TensorSource> tensors;
  std::vector<std::byte> value_head;
  const auto put = [&](const std::string& name, const files::SafetensorsFolder::Entry& entry) {
    if (const auto some = experts.find(name); some != experts.end()) {
      return tensors.push_back(
          {name, entry.info->dtype, entry.info->shape,
           [&values, rank, scale, entry, place = some->second](const files::WriteBytes& write) {
             const auto& [at, first] = place;
             const int64_t n = entry.info->numel() / at.k, from = first / at.n, to = (first + n - 1) / at.n;
             MergedMatrix matrix{
                 .w = entry, .a = {}, .b = {}, .n = n, .k = at.k, .rank = rank, .each = std::min(n, at.n)};
             matrix.a.assign(values.begin() + at.a + from * rank * at.k,
                             values.begin() + at.a + (to + 1) * rank * at.k);
             for (int64_t row = first; row < first + n; ++row)
               for (int64_t r = 0; r < rank; ++r)
                 matrix.b.push_back(
                     scale * values[static_cast<size_t>(at.b + (row / at.n * rank + r) * at.n + row % at.n)]);
             return matrix.Write(write);
           }});
    }
    const auto found = changed.find(name);
    if (found == changed.end())
      return tensors.push_back(files::SourceOf(name, entry.info->dtype, entry.info->shape, entry.bytes()));
    tensors.push_back(
        {name, entry.info->dtype, entry.info->shape,
         [&values, rank, scale, entry, at = found->second](const files::WriteBytes& write) {
           // Of an embedding the change is A^T B^T: what is [n, rank] stands as it is, and k is
           // n.
           const bool table = at.a_is_turned();
           const int64_t n = table ? at.k : at.n, k = table ? at.n : at.k, of_rows = table ? at.a : at.b,
                         of_columns = table ? at.b : at.a;
           MergedMatrix matrix{.w = entry, .a = {}, .b = {}, .n = n, .k = k, .rank = rank, .each = n};
           matrix.a.assign(values.begin() + of_columns, values.begin() + of_columns + rank * k);
           matrix.b.resize(static_cast<size_t>(n * rank));
           for (int64_t i = 0; i < n; ++i)
             for (int64_t r = 0; r < rank; ++r)
               matrix.b[static_cast<size_t>(i * rank + r)] =
                   scale * values[static_cast<size_t>(of_rows + (table ? i * rank + r : r * n + i))];
           return matrix.Write(write);
         }});
  };
  for (const auto& [name, entry] : stored->tensors()) {
    if ((unties || score) && name == head) continue;  // a copy that nothing reads; nothing reads it any more
    if (score && name == kScoreTensor) continue;
    put(name, entry);
    if (unties && name == embedding) put(head, entry);
    if (!score || name != embedding) continue;
    const auto row =
        std::span(values).subspan(static_cast<size_t>(AdapterLayout(spec, adapter.spec()).back().offset),
                                  static_cast<size_t>(spec.hidden_size));
    value_head.resize(row.size() * static_cast<size_t>(files::DTypeBits(entry.info->dtype) / 8));
    files::ConvertFloats(files::DType::kF32, std::as_bytes(row).data(), spec.hidden_size, entry.info->dtype,
                         value_head.data());
    tensors.push_back(files::SourceOf(kScoreTensor, entry.info->dtype, {1, spec.hidden_size}, value_head));
  }
  TP_RETURN_IF_ERROR(files::WriteSafetensorsFolder(folder, tensors, max_shard_bytes));
  // Last, so that a folder with a config.json is whole.
  for (const char* file : {"generation_config.json", "config.json"}) {
    if (std::string_view(file) != "config.json" && !fs::exists(model_folder + "/" + file, error)) continue;
    TP_ASSIGN_OR_RETURN(std::string text, files::ReadSmallFile(model_folder + "/" + file, int64_t{16} << 20));
    if ((unties || score) && std::string_view(file) == "config.json") {
      auto config = nlohmann::ordered_json::parse(text);  // ReadSpec has read it
      if (unties) config["tie_word_embeddings"] = false;
      if (score) NameAsRewardModel(config);
      text = config.dump(2) + "\n";
    }
    TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/" + file, text));
  }
  return OkStatus();
}

}  // namespace tidepool::model
