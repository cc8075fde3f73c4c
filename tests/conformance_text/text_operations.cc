#include "tests/conformance_text/text_operations.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/files/float_formats.h"
#include "core/files/gguf_hugging_face.h"
#include "core/files/safetensors.h"

namespace tidepool::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kKeptMax = 16;  // of each kind; more are loaded again

StatusOr<std::string> Text(const Json& request, const char* key) {
  if (!request.contains(key) || !request[key].is_string()) {
    return InvalidArgument(std::string("the request has no string \"") + key + "\"");
  }
  return request[key].get<std::string>();
}

std::string Digest(std::span<const float> values, bool bf16) {
  Sha256 sha;
  if (bf16) {
    std::vector<uint16_t> rounded(values.size());
    files::FloatsToBf16(values, rounded);
    sha.Update(std::as_bytes(std::span(rounded)));
  } else {
    sha.Update(std::as_bytes(values));
  }
  return Hex(sha.Finish());
}

// From `kept`, or loaded and kept.
template <typename Map, typename Load>
auto Keep(Map& kept, const std::string& name, const Load& load)
    -> StatusOr<decltype(kept.begin()->second->get())> {
  auto found = kept.find(name);
  if (found == kept.end()) {
    if (kept.size() >= kKeptMax) kept.clear();
    found = kept.emplace(name, load()).first;
  }
  if (!found->second.ok()) return found->second.status();
  return found->second->get();
}

}  // namespace

TextConformance::TextConformance() = default;
TextConformance::~TextConformance() = default;

std::optional<Json> TextConformance::Answer(const Json& request) {
  static constexpr std::string_view kOperations[] = {"tokenizer.encode", "tokenizer.decode",
                                                     "chat.render",      "gguf.tensor",
                                                     "gguf.hf_tensor",   "safetensors.check"};
  if (!request.is_object() || !request.contains("op") || !request["op"].is_string()) return std::nullopt;
  const auto operation = request["op"].get<std::string>();
  if (std::find(std::begin(kOperations), std::end(kOperations), operation) == std::end(kOperations)) {
    return std::nullopt;
  }
  Json answer = Json::object();
  if (request.contains("id")) answer["id"] = request["id"];
  try {
    StatusOr<Json> result = Run(operation, request);
    if (result.ok()) {
      answer.update(*result);
    } else {
      answer["error"] = result.status().ToString();
    }
  } catch (const std::exception& e) {  // bad_alloc, or the JSON library's
    answer["error"] = std::string("INTERNAL: ") + e.what();
  }
  return answer;
}

StatusOr<const Tokenizer*> TextConformance::TokenizerOf(const Json& request) {
  TP_ASSIGN_OR_RETURN(const std::string folder, Text(request, "tokenizer"));
  TP_ASSIGN_OR_RETURN(const auto* kept, Keep(tokenizers_, folder, [&] { return Tokenizer::Load(folder); }));
  return kept;
}

StatusOr<const files::GgufFile*> TextConformance::GgufOf(const Json& request) {
  TP_ASSIGN_OR_RETURN(const std::string path, Text(request, "file"));
  TP_ASSIGN_OR_RETURN(const auto* kept, Keep(gguf_files_, path, [&] { return files::GgufFile::Open(path); }));
  return kept;
}

StatusOr<Json> TextConformance::Run(const std::string& operation, const Json& request) {
  if (operation == "tokenizer.encode") {
    TP_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, TokenizerOf(request));
    TP_ASSIGN_OR_RETURN(const std::string text, Text(request, "text"));
    TP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->Encode(text, {.leave_out = true}));
    return Json{{"ids", ids}};
  }
  if (operation == "tokenizer.decode") {
    TP_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, TokenizerOf(request));
    if (!request.contains("ids") || !request["ids"].is_array())
      return InvalidArgument("the request has no \"ids\"");
    std::vector<int32_t> ids;
    for (const Json& id : request["ids"]) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        return InvalidArgument("\"ids\" has something that is no token id");
      }
      ids.push_back(id.get<int32_t>());
    }
    const bool skip = request.contains("skip_special") && request["skip_special"].is_boolean() &&
                      request["skip_special"].get<bool>();
    return Json{{"text", tokenizer->Decode(ids, skip)}};
  }
  if (operation == "chat.render") {
    TP_ASSIGN_OR_RETURN(const std::string folder, Text(request, "tokenizer"));
    TP_ASSIGN_OR_RETURN(const auto* kept,
                        Keep(templates_, folder, [&] { return ChatTemplate::Load(folder); }));
    if (!request.contains("messages")) return InvalidArgument("the request has no \"messages\"");
    ChatOptions options;
    options.add_generation_prompt = request.contains("add_generation_prompt") &&
                                    request["add_generation_prompt"].is_boolean() &&
                                    request["add_generation_prompt"].get<bool>();
    if (request.contains("tools")) options.tools = request["tools"];
    // The reference's strftime_now is the clock; a test may pin it.
    options.unix_time_s = static_cast<int64_t>(std::time(nullptr));
    if (request.contains("unix_time_s") && request["unix_time_s"].is_number_integer())
      options.unix_time_s = request["unix_time_s"].get<int64_t>();
    TP_ASSIGN_OR_RETURN(std::string text, kept->Render(request["messages"], options));
    return Json{{"text", std::move(text)}};
  }
  if (operation == "safetensors.check") {
    TP_ASSIGN_OR_RETURN(const std::string path, Text(request, "file"));
    TP_RETURN_IF_ERROR(files::SafetensorsFile::Open(path).status());
    return Json{{"ok", true}};
  }
  // gguf.tensor, gguf.hf_tensor
  TP_ASSIGN_OR_RETURN(const files::GgufFile* file, GgufOf(request));
  TP_ASSIGN_OR_RETURN(const std::string name, Text(request, "name"));
  TP_ASSIGN_OR_RETURN(const std::string dtype, Text(request, "dtype"));
  if (dtype != "f32" && dtype != "bf16")
    return InvalidArgument("dtype is " + dtype + ", expected f32 or bf16");
  std::vector<float> values;
  if (operation == "gguf.tensor") {
    const files::GgufTensor* tensor = file->Find(name);
    if (tensor == nullptr) return NotFound(file->path() + ": has no tensor \"" + name + "\"");
    values.resize(static_cast<size_t>(tensor->numel()));
    TP_RETURN_IF_ERROR(files::Dequantize(*tensor, 0, values));
    return Json{{"sha256", Digest(values, dtype == "bf16")}};
  }
  TP_ASSIGN_OR_RETURN(const std::vector<files::GgufHuggingFaceTensor> tensors,
                      files::HuggingFaceTensors(*file));
  for (const files::GgufHuggingFaceTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    values.resize(static_cast<size_t>(tensor.numel()));
    TP_RETURN_IF_ERROR(files::ReadHuggingFaceTensor(tensor, values));
    return Json{{"sha256", Digest(values, dtype == "bf16")}};
  }
  return NotFound(file->path() + ": has no tensor that a Hugging Face checkpoint calls \"" + name + "\"");
}

}  // namespace tidepool::text
