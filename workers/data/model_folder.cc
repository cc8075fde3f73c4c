#include "workers/data/model_folder.h"

#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/base/names.h"
#include "core/files/mapped_file.h"
#include "core/files/safetensors.h"
#include "core/model/adapter_files.h"
#include "core/model/gguf_folder.h"
#include "core/storage/run_directory.h"
#include "core/text/tokenizer.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;

StatusOr<json> ReadJson(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(path, kMaxConfigBytes));
  return ParseJsonObject<json>(text, path);
}

Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.flush();
  if (!out) return Unavailable(path + ": cannot be written; is the disk full?");
  return OkStatus();
}

bool HoldsRun(const std::string& dir) {
  const storage::RunPaths paths(dir);
  std::error_code error;
  return fs::exists(paths.config(), error) &&
         (fs::exists(paths.journal(), error) || fs::exists(paths.lock(), error));
}

// The run that `dir` is, or the newest one that it is the name of without the time. Empty: none.
std::string RunMeant(std::string dir) {
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  if (HoldsRun(dir)) return dir;
  const fs::path path = dir, parent = path.has_parent_path() ? path.parent_path() : fs::path("runs");
  const std::string begins = path.filename().string() + "-2";  // of its year
  std::string newest;
  std::error_code error;
  if (path.filename().empty() || fs::exists(path, error)) return "";
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const std::string found = entry.path().string();
    if (entry.path().filename().string().starts_with(begins) && found > newest && HoldsRun(found))
      newest = found;
  }
  return newest;
}

// "is a run; ...": where its model is.
std::string ModelOfRunText(const std::string& dir, const std::string& run) {
  const std::string final_model = storage::RunPaths(run).final_model();
  const std::string name =
      fs::path(run).filename() == fs::path(dir).filename() ? "is a run" : "names a run, " + run + ",";
  std::error_code error;
  if (fs::exists(final_model + "/config.json", error))
    return name + " and no model folder; give the model that it ended with, " + final_model;
  if (fs::exists(final_model + "/" + model::kAdapterConfigFile, error))
    return name + " that trained an adapter, " + final_model +
           "; give the model that it is of here, and the " +
           "adapter as model.lora.path, or merge them: tidepool export " + run + " --merge --out DIR";
  return name +
         " and no model folder, and it has no final/ yet, which is made when it finishes; a model of "
         "a checkpoint is in " +
         storage::RunPaths(run).checkpoints() + "/step_N/model";
}

}  // namespace

bool HasTensors(const std::string& dir) {
  std::error_code error;  // what cannot be looked at is not there for us
  return model::HoldsGguf(dir) || fs::exists(dir + "/model.safetensors", error) ||
         fs::exists(dir + "/model.safetensors.index.json", error);
}

StatusOr<std::string> ModelDigestOf(const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const std::string config, files::ReadSmallFile(dir + "/config.json", kMaxConfigBytes));
  const std::string of_config = Sha256Hex(config).substr(0, 8) + "-";
  if (model::HoldsGguf(dir)) {
    TP_ASSIGN_OR_RETURN(const auto gguf, model::GgufFolder::Open(dir));
    return of_config + gguf.Digest();
  }
  TP_ASSIGN_OR_RETURN(const auto weights, files::SafetensorsFolder::Open(dir));
  return of_config + weights->Digest();
}

Status CheckModelDigest(const std::string& dir, const std::string& begun_with) {
  TP_ASSIGN_OR_RETURN(const std::string found, ModelDigestOf(dir));
  if (found == begun_with) return OkStatus();
  const bool config = found.substr(0, found.find('-')) != begun_with.substr(0, begun_with.find('-'));
  return FailedPrecondition(
      dir + ": holds another " + (config ? "config.json" : "model") +
      " than when the run began (the digest of its config.json and weights is " + found + ", and was " +
      begun_with +
      "), and an adapter is good for the model that it was trained on alone; bring that "
      "one back, or start a new run");
}

std::string ModelInRun(const model::AdapterFolder& adapter, const std::string& run) {
  if (run.empty() || adapter.fingerprint().empty()) return "";
  const auto final_in = [](const std::string& dir) { return storage::RunPaths(dir).final_model(); };
  const storage::RunPaths paths(run);
  // A run of a sweep starts from what the sweep made.
  const std::string sweep = (fs::path(run) / "..").lexically_normal().string();
  for (const std::string& dir :
       {paths.model(), final_in(paths.warm_start()), final_in(storage::RunPaths(sweep).warm_start())}) {
    std::error_code error;
    if (fs::exists(dir + "/config.json", error) && adapter.CheckBase(dir).ok()) return dir;
  }
  return "";
}

std::string WhereToGetModel(const std::string& dir) {
  std::string name = fs::path(dir).filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string example = "smollm2-135m-instruct";
  if (name == example) return "`make smollm2-model` fetches it into models/" + example;
  if (!LooksLikeHubName(dir))
    return "give the folder of a Hugging Face model; `make smollm2-model` makes models/" + example;
  return "names on a hub are not downloaded: get it with `hf download " + dir + " --local-dir models/" +
         name + "`, and give that folder";
}

Status CheckModelFolder(const std::string& dir, const std::string& key) {
  std::error_code error;
  if (!fs::exists(dir + "/config.json", error)) {
    if (const std::string run = RunMeant(dir); !run.empty())
      return NotFound(key + ": " + dir + " " + ModelOfRunText(dir, run));
  }
  if (dir.ends_with(".gguf") && fs::is_regular_file(dir, error))
    return NotFound(
        key + ": " + dir + " is a GGUF file and no folder; make one: `tidepool import " + dir +
        " --out DIR` in bfloat16, or with --keep-blocks in its blocks of 8 or 4 bits, for adapters");
  if (!fs::is_directory(dir, error)) {
    return NotFound(key + ": " + dir + " is no folder; " + WhereToGetModel(dir));
  }
  for (const char* name : {"config.json", "tokenizer.json"}) {
    if (!fs::exists(dir + "/" + name, error)) return NotFound(key + ": " + dir + " has no " + name);
  }
  if (model::HoldsGguf(dir)) return OkStatus();
  bool pickled = false;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") return OkStatus();
    pickled = pickled || name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
  }
  if (pickled) {
    return Unimplemented(key + ": " + dir +
                         " has its weights as pickled files only; pickles can run code, so they are not "
                         "read: convert them to safetensors");
  }
  return NotFound(key + ": " + dir + " has no .safetensors file");
}

StatusOr<std::vector<int32_t>> EndTokens(const std::string& dir) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = dir + "/" + name;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    TP_ASSIGN_OR_RETURN(const json config, ReadJson(path));
    const auto it = config.find("eos_token_id");
    if (it == config.end() || it->is_null()) continue;
    std::vector<int32_t> ids;
    for (const json& id : it->is_array() ? *it : json::array({*it})) {
      if (!id.is_number_integer()) return InvalidArgument(path + ": eos_token_id is no integer");
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
  return std::vector<int32_t>{};
}

Status WriteInitFolder(const ModelInit& init, DType dtype, const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");
  TP_RETURN_IF_ERROR(text::WriteCharacterTokenizer(init.alphabet, dir));
  TP_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::Load(dir));
  json config = {{"model_type", init.architecture},
                 {"vocab_size", tokenizer->vocab_size()},
                 {"hidden_size", init.hidden_size},
                 {"intermediate_size", init.intermediate_size},
                 {"num_hidden_layers", init.layers},
                 {"num_attention_heads", init.heads},
                 {"num_key_value_heads", init.kv_heads},
                 {"head_dim", init.head_size},
                 {"max_position_embeddings", init.max_position},
                 {"rope_theta", init.rope_theta},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", init.tie_embeddings},
                 {"torch_dtype", Name(dtype)},
                 {"pad_token_id", 0},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config["architectures"] = {init.architecture == "llama"   ? "LlamaForCausalLM"
                             : init.architecture == "qwen2" ? "Qwen2ForCausalLM"
                                                            : "Qwen3ForCausalLM"};
  TP_RETURN_IF_ERROR(WriteText(dir + "/config.json", config.dump(2) + "\n"));
  const json generation = {{"bos_token_id", 1}, {"eos_token_id", 2}, {"pad_token_id", 0}};
  return WriteText(dir + "/generation_config.json", generation.dump(2) + "\n");
}

StatusOr<TextFolder> TextFolder::Of(const ModelConfig& model) {
  if (model.is_policy()) return TextFolder("", false);
  if (!model.init) {
    TP_RETURN_IF_ERROR(CheckModelFolder(model.path));
    return TextFolder(model.path, false);
  }
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  if (error)
    return Unavailable("there is no folder for temporary files (" + error.message() + "); set TMPDIR");
  std::string made = (base / "tidepool-text-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) return Unavailable(made + ": no temporary folder can be made");
  TextFolder folder(std::move(made), true);
  TP_RETURN_IF_ERROR(WriteInitFolder(*model.init, model.dtype, folder.path()));
  return folder;
}

TextFolder::~TextFolder() {
  std::error_code error;  // what cannot be removed harms nobody
  if (temporary_) fs::remove_all(path_, error);
}

Status CopyTextFiles(const std::string& from, const std::string& to) {
  static constexpr std::array<const char*, 8> kNames = {
      "tokenizer.json",          "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
      "special_tokens_map.json", "added_tokens.json",     "vocab.json",          "merges.txt"};
  for (const char* name : kNames) {
    std::error_code error;
    if (!fs::exists(from + "/" + name, error)) continue;
    fs::copy_file(from + "/" + name, to + "/" + name, fs::copy_options::overwrite_existing, error);
    if (error) return Unavailable(to + "/" + name + ": cannot be written (" + error.message() + ")");
  }
  return OkStatus();
}

}  // namespace tidepool::workers
