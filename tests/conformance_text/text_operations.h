#pragma once
// The tensor-free operations of the conformance protocol (one JSON object a line): tokenizer.encode,
// tokenizer.decode, chat.render, gguf.tensor, gguf.hf_tensor, safetensors.check. Files and folders do
// not change while the program runs, so what was loaded is kept. Not thread-safe.

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/files/gguf.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"

namespace tidepool::text {

class TextConformance {
 public:
  TextConformance();
  ~TextConformance();
  // The answer with the request's id, or nothing if the operation is not one of those above. Failures
  // are answers too: {"id", "error"}. `request` keeps the order of keys, which chat templates can see.
  std::optional<nlohmann::ordered_json> Answer(const nlohmann::ordered_json& request);

 private:
  StatusOr<nlohmann::ordered_json> Run(const std::string& operation, const nlohmann::ordered_json& request);
  // What a file came out as, errors too: to refuse a large file again takes as long as the first time.
  template <typename T>
  using Kept = std::map<std::string, StatusOr<std::unique_ptr<T>>>;
  StatusOr<const Tokenizer*> TokenizerOf(const nlohmann::ordered_json& request);
  StatusOr<const files::GgufFile*> GgufOf(const nlohmann::ordered_json& request);

  Kept<Tokenizer> tokenizers_;
  Kept<ChatTemplate> templates_;
  Kept<files::GgufFile> gguf_files_;
};

}  // namespace tidepool::text
