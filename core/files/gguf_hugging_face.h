#pragma once
// What a GGUF file has of a Hugging Face model folder: tensors and tokenizer (core/model/gguf_import.h makes
// the folder). Rules:
// - tensors get the names and row order of the Hugging Face checkpoint. llama.cpp's converter permutes
//   the rows of q and k of llama models (not of qwen) from halves to pairs; that is undone.
// - without `output.weight` the embedding is tied.
// - vocabulary, merges and token types become tokenizer.json with the pre-tokeniser that
//   `tokenizer.ggml.pre` names: smollm (single digits, then GPT-2's pattern), llama-bpe, qwen2,
//   gpt-2 or default (GPT-2's pattern).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/files/gguf.h"
#include "core/files/safetensors.h"

namespace tidepool::files {

// A tensor under its Hugging Face name.
struct GgufHuggingFaceTensor {
  std::string name;                    // "model.layers.0.self_attn.q_proj.weight"
  const GgufTensor* tensor = nullptr;  // of the file
  int64_t heads = 0;                   // > 0: rows are un-permuted within each of so many heads
  int64_t first_row = 0;               // of the file's tensor: one expert of many stands in it
  std::vector<int64_t> shape;          // in the checkpoint
  [[nodiscard]] int64_t numel() const;
};

// All tensors of the checkpoint in module order. kUnimplemented for an unknown architecture or a
// tensor that has no place in it; kInvalidArgument if one is missing.
StatusOr<std::vector<GgufHuggingFaceTensor>> HuggingFaceTensors(const GgufFile& file);

// float32 values in Hugging Face row order; requires out.size() == tensor.numel().
Status ReadHuggingFaceTensor(const GgufHuggingFaceTensor& tensor, std::span<float> out);

// The tokenizer part (gguf_tokenizer.cc): tokenizer.json, tokenizer_config.json, chat_template.jinja.
Status WriteGgufTokenizer(const GgufFile& file, const std::string& out_folder);

}  // namespace tidepool::files
