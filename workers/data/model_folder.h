#pragma once
// Hugging Face folders as the controller needs them: it reads no tensor, but for their digest. Files:
// config.json, generation_config.json, tokenizer files, safetensors.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"

namespace tidepool::model {
class AdapterFolder;
}

namespace tidepool::workers {

// Can `dir` be a model? config.json and tokenizer.json are there and the weights too (safetensors).
// kNotFound names what is missing, or the model of the run that `dir` is; kUnimplemented: only pickled
// weights (.bin, .pt) are there.
Status CheckModelFolder(const std::string& dir, const std::string& key = "model.path");

bool HasTensors(const std::string& dir);  // whether the folder has weights
// Of config.json in `dir` and of all weights, safetensors or blocks. Reads all of them.
StatusOr<std::string> ModelDigestOf(const std::string& dir);
// kFailedPrecondition: the model in `dir` has another digest than when the run began.
Status CheckModelDigest(const std::string& dir, const std::string& begun_with);
// The model that an adapter of a run names, where the run or its sweep has it: model/ or warm_start/final.
// Found by its values, because the name has the place where the run was. Empty: none.
std::string ModelInRun(const model::AdapterFolder& adapter, const std::string& run);

// What to do about a model folder that is not there: names on a hub ("org/name") are not downloaded.
std::string WhereToGetModel(const std::string& dir);

// End tokens (eos_token_id) of generation_config.json, else of config.json; one or several.
StatusOr<std::vector<int32_t>> EndTokens(const std::string& dir);

// A folder for a model that is made from the config: config.json, generation_config.json and a
// character tokenizer over `init.alphabet`; no weights, the device worker makes those from the seed.
Status WriteInitFolder(const ModelInit& init, DType dtype, const std::string& dir);

// Where a model's tokenizer and template are, before there is a run: its folder, or for model.init one that
// is written for the purpose and goes with this object. Empty for a policy of control tasks.
class TextFolder {
 public:
  // What CheckModelFolder and WriteInitFolder return.
  static StatusOr<TextFolder> Of(const ModelConfig& model);
  TextFolder(TextFolder&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, false)) {}
  TextFolder& operator=(TextFolder&&) = delete;
  ~TextFolder();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  TextFolder(std::string path, bool temporary) : path_(std::move(path)), temporary_(temporary) {}
  std::string path_;
  bool temporary_ = false;
};

// Copies what belongs to text (tokenizer*, chat_template*, special tokens, vocab, merges) from one folder to
// another.
Status CopyTextFiles(const std::string& from, const std::string& to);

}  // namespace tidepool::workers
