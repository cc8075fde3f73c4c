#pragma once
// Adapters as folders of PEFT's (github.com/huggingface/peft, LoRA): adapter_config.json, and
// adapter_model.safetensors with lora_A [rank, k] and lora_B [n, rank] of each matrix that is changed, of an
// embedding lora_embedding_A [rank, vocab] and lora_embedding_B [d, rank], of the experts of a layer (their
// target_parameters) lora_A [E rank, k], expert after expert, and lora_B [n, rank E], whose columns are the
// first one of each expert, then the second ones. No LibTorch. Any thread.
//
// What PEFT has for adapters and is not implemented is kUnimplemented with file and key: bias, DoRA, modules
// that are saved whole, ranks or alphas of single modules, and starts that change the model
// (init_lora_weights: pissa and the like). There are tensors of the modules that the config chooses
// (target_modules, exclude_modules, layers_to_transform), and of no others, but for copies of an embedding
// and a head that are changed, which PEFT adds.
//
// A folder written here also has, in the safetensors' metadata, the fingerprint of the model that the adapter
// was trained on. Others know nothing of it, so an adapter without one is compared by shapes alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/files/safetensors.h"
#include "core/model/adapter.h"
#include "core/model/spec.h"

namespace tidepool::model {

class ChosenModules;

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterTensorsFile = "adapter_model.safetensors";
inline constexpr int64_t kAdapterRankMost = 4096;

// 16 hexadecimal digits of a model folder: names and shapes of its tensors, and 4096 values of each, from all
// over it, as bfloat16 has them. So it is read in milliseconds, and of copies of a model in another floating
// type or in other shards it is the same.
StatusOr<std::string> Fingerprint(const std::string& model_folder);
// How it is made: of each tensor, in the order of their names.
class FingerprintSum {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape, files::DType dtype,
           std::span<const std::byte> bytes);
  [[nodiscard]] std::string Finish();

 private:
  Sha256 hash_;
};

class AdapterFolder {
 public:
  // Reads the config and the tensors' names and shapes. Errors name file and key or tensor.
  static StatusOr<AdapterFolder> Open(const std::string& folder);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const AdapterSpec& spec() const { return spec_; }
  [[nodiscard]] const std::string& base() const { return base_; }  // base_model_name_or_path; may be empty
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }  // of its base; may be empty
  [[nodiscard]] int64_t parameters() const;

  // Whether it fits a model: every matrix that it changes is there, with its sides. kInvalidArgument,
  // kUnimplemented.
  [[nodiscard]] Status CheckShapes(const ModelSpec& base) const;
  // The same, and that it was trained on this model, as far as it says so.
  [[nodiscard]] Status CheckBase(const std::string& model_folder) const;
  [[nodiscard]] Status CheckFinite() const;  // kInvalidArgument: it has a value that is not
  // Whether training can go on with it: all values are finite, and no matrix of its targets is left out,
  // whose A and B would be zeros for ever. kInvalidArgument, kUnimplemented.  requires CheckShapes(base)
  [[nodiscard]] Status CheckTrainable(const ModelSpec& base) const;
  // Whether it is of this rank, alpha, targets and form of scale. kInvalidArgument.
  [[nodiscard]] Status CheckSpec(const AdapterSpec& wanted) const;
  // Its values in the order of AdapterLayout(base, spec()); `arena` is of AdapterElements * Bytes(dtype)
  // bytes. requires CheckShapes(base)
  void Read(const ModelSpec& base, DType dtype, std::span<std::byte> arena) const;

 private:
  AdapterFolder(std::string path, std::unique_ptr<files::SafetensorsFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status ReadConfig();
  // Of so many layers the chosen modules have tensors, and no others; of experts where the base is given.
  [[nodiscard]] Status CheckChosen(int64_t layers, const ModelSpec* base) const;
  // Embedding and head, where PEFT has put them into the folder, are the model's.
  [[nodiscard]] Status CheckSavedMatrices(const ModelSpec& spec, const std::string& model_folder) const;

  std::string path_;
  std::unique_ptr<files::SafetensorsFile> file_;
  std::shared_ptr<const ChosenModules> chosen_;
  AdapterSpec spec_;
  std::string base_, fingerprint_;
  int64_t layers_ = 0;  // one more than the last that it changes
};

// An adapter's values as AdapterLayout(base, adapter) has them.
struct AdapterValues {
  const ModelSpec& base;
  const AdapterSpec& adapter;
  DType dtype = DType::kFloat32;
  std::span<const std::byte> arena;
};
// `model_folder`: of the base, named in the config, with its fingerprint where it has tensors. The config
// comes last, so that a folder that has one is whole.
Status SaveAdapter(const AdapterValues& values, const std::string& model_folder, const std::string& folder);

// A model folder with W + scale B A in place of each matrix W that the adapter changes, formed in float32 and
// stored in W's type; all else is the base's, byte for byte. Where embedding and head are one matrix and
// either is changed, the folder has two, and says so in config.json. Config files are copied, tokenizer files
// are not. Errors of CheckBase and of writing.
Status MergeAdapter(const AdapterFolder& adapter, const std::string& model_folder, const std::string& folder,
                    int64_t max_shard_bytes = int64_t{5} << 30);

}  // namespace tidepool::model
