#pragma once
// A model folder whose weights are those of a GGUF file, in its blocks of 8 or 4 bits: config.json, the
// tokenizer's files, and the file as model.gguf in place of safetensors (`tidepool import --keep-blocks`).
// What is read of it as numbers has the values, names and shapes of the folder that ImportGguf makes of
// the file in bfloat16, before they are rounded to it. No LibTorch. Any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/files/gguf.h"
#include "core/files/gguf_hugging_face.h"
#include "core/model/block_layout.h"
#include "core/model/hugging_face.h"
#include "core/model/spec.h"

namespace tidepool::model {

inline constexpr const char* kGgufFile = "model.gguf";
bool HoldsGguf(const std::string& folder);

class GgufFolder {
 public:
  // Every tensor that config.json asks for has to be there, with its shape. Errors name file and tensor.
  static StatusOr<GgufFolder> Open(const std::string& folder);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  // Types for LayoutInBlocks: of the parameters all of whose tensors have the same one, which products read.
  [[nodiscard]] std::vector<device::BlockType> BlockTypes() const;
  // All parameters, with Layout(spec()) in `dtype`, or as LayoutInBlocks has them. kDataLoss: a scale of a
  // block that is no number.
  Status Read(DType dtype, std::span<std::byte> arena) const;
  Status Read(DType dtype, const BlockLayout& blocks, std::span<std::byte> arena) const;
  // The tensor that a checkpoint has by this name, rounded to bfloat16. kNotFound: there is none.
  [[nodiscard]] StatusOr<std::vector<std::byte>> Narrow(const std::string& name) const;
  // Fingerprint of adapter_files.h, and a digest of the file.
  [[nodiscard]] StatusOr<std::string> Fingerprint() const;
  [[nodiscard]] std::string Digest() const;

 private:
  struct Tensor {
    HuggingFaceTensor as;  // where it belongs
    files::GgufHuggingFaceTensor from;
  };
  GgufFolder() = default;
  // Of one tensor, in the order of the checkpoint.
  [[nodiscard]] Status ReadTensor(const Tensor& tensor, DType dtype, std::byte* out) const;
  [[nodiscard]] Status ReadBlocks(const Tensor& tensor, std::byte* out) const;

  ModelSpec spec_;
  std::unique_ptr<files::GgufFile> file_;
  std::vector<Tensor> tensors_;
};

}  // namespace tidepool::model
