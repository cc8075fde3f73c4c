#pragma once
// A GGUF file as a Hugging Face model folder.
//
// Works by `general.architecture` (llama, qwen2, qwen3, their mixtures) and `tokenizer.ggml.pre`, never by a
// model's name; what is not known is refused by its name.

#include <string>

#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::model {

// config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and, if
// the file has a chat template, chat_template.jinja. bfloat16: rounded to nearest, ties to even. Makes the
// folder; files of these names in it are replaced.
Status ImportGguf(const std::string& file, const std::string& out_folder, DType dtype = DType::kBFloat16);
// The same with the file itself, as model.gguf, in place of model.safetensors (gguf_folder.h): a hard link,
// or a copy where the folder is on another disk.
Status ImportGgufBlocks(const std::string& file, const std::string& out_folder);

}  // namespace tidepool::model
