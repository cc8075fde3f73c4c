#include "core/model/gguf_folder.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/files/safetensors.h"
#include "core/model/adapter_files.h"
#include "core/model/layout.h"

namespace tidepool::model {
namespace {

using device::BlockType;

BlockType TypeOf(files::GgufType type) {
  switch (type) {
    case files::GgufType::kQ8_0:
      return BlockType::kQ8_0;
    case files::GgufType::kQ4_0:
      return BlockType::kQ4_0;
    case files::GgufType::kQ4_1:
      return BlockType::kQ4_1;
    case files::GgufType::kF32:
    case files::GgufType::kF16:
    case files::GgufType::kBF16:
      break;
  }
  return BlockType::kNone;
}

bool FiniteHalf(const std::byte* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, 2);
  return (bits & 0x7C00) != 0x7C00;
}

}  // namespace

bool HoldsGguf(const std::string& folder) {
  std::error_code error;  // what cannot be looked at is not there for us
  return std::filesystem::exists(folder + "/" + kGgufFile, error);
}

StatusOr<GgufFolder> GgufFolder::Open(const std::string& folder) {
  GgufFolder result;
  TP_ASSIGN_OR_RETURN(result.spec_, ReadSpec(folder));
  TP_ASSIGN_OR_RETURN(result.file_, files::GgufFile::Open(folder + "/" + kGgufFile));
  TP_ASSIGN_OR_RETURN(const auto there, files::HuggingFaceTensors(*result.file_));
  std::map<std::string_view, const files::GgufHuggingFaceTensor*> by_name;
  for (const auto& tensor : there) by_name[tensor.name] = &tensor;
  const int64_t experts = result.spec_.sparse_layers() * result.spec_.moe.experts * 3;
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(result.file_->path() + ": " + what +
                           "; config.json beside it is of another model: make the folder anew by `tidepool "
                           "import FILE.gguf --keep-blocks --out DIR`");
  };
  if (experts > static_cast<int64_t>(there.size()))
    return wrong("has " + std::to_string(there.size()) + " tensors, too few for the experts");
  for (HuggingFaceTensor& needed : HuggingFaceTensors(result.spec_)) {
    const auto found = by_name.find(needed.name);
    if (found == by_name.end())
      return wrong("the tensor " + needed.name + " " + files::ShapeText(needed.shape) + " is missing");
    if (found->second->shape != needed.shape)
      return wrong(needed.name + ": shape " + files::ShapeText(found->second->shape) + ", expected " +
                   files::ShapeText(needed.shape));
    result.tensors_.push_back({std::move(needed), *found->second});
  }
  if (result.tensors_.size() != there.size())
    return wrong("has " + std::to_string(there.size()) + " tensors, and the model " +
                 std::to_string(result.tensors_.size()));
  return result;
}

std::vector<BlockType> GgufFolder::BlockTypes() const {
  const std::vector<Parameter> layout = Layout(spec_);
  std::vector<BlockType> types(layout.size(), BlockType::kNone);
  std::vector<bool> seen(layout.size(), false);
  for (const Tensor& tensor : tensors_) {
    const auto i = static_cast<size_t>(tensor.as.index);
    const BlockType type = CanBeBlocks(layout[i]) ? TypeOf(tensor.from.tensor->type) : BlockType::kNone;
    types[i] = !seen[i] || types[i] == type ? type : BlockType::kNone;  // for good: its tensors differ
    seen[i] = true;
  }
  return types;
}

Status GgufFolder::ReadTensor(const Tensor& tensor, DType dtype, std::byte* out) const {
  std::vector<float> values(static_cast<size_t>(tensor.from.numel()));
  TP_RETURN_IF_ERROR(files::ReadHuggingFaceTensor(tensor.from, values));
  files::ConvertFloats(files::DType::kF32, reinterpret_cast<const std::byte*>(values.data()),
                       tensor.from.numel(), StoredType(dtype), out);
  return OkStatus();
}

Status GgufFolder::ReadBlocks(const Tensor& tensor, std::byte* out) const {
  const files::GgufTensor& from = *tensor.from.tensor;
  const BlockType type = TypeOf(from.type);
  const int64_t k = from.ne[0], rows = tensor.from.numel() / k, row_bytes = device::BlockRowBytes(type, 1, k),
                each = device::BlockBytes(type);
  const int64_t heads = tensor.from.heads, head = heads == 0 ? 0 : rows / heads;
  for (int64_t r = 0; r < rows; ++r) {
    // The file has the rows of a head in pairs where the checkpoint has halves (gguf_hugging_face.h).
    const int64_t in_head = head == 0 ? 0 : r % head;
    const int64_t row = head == 0 ? tensor.from.first_row + r
                                  : r - in_head + 2 * (in_head % (head / 2)) + in_head / (head / 2);
    const std::byte* p = from.bytes.data() + row * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += each) {
      if (!FiniteHalf(p + at) || (type == BlockType::kQ4_1 && !FiniteHalf(p + at + 2)))
        return DataLoss(file_->path() + ": " + std::string(from.name) + ": row " + std::to_string(row) +
                        " has a block whose scale is no number; the file is damaged");
    }
    std::memcpy(out + r * row_bytes, p, static_cast<size_t>(row_bytes));
  }
  return OkStatus();
}

Status GgufFolder::Read(DType dtype, std::span<std::byte> arena) const {
  const std::vector<Parameter> layout = Layout(spec_);
  for (const Tensor& tensor : tensors_) {
    const Parameter& p = layout[static_cast<size_t>(tensor.as.index)];
    const int64_t row = p.numel() / p.shape[0];
    TP_RETURN_IF_ERROR(
        ReadTensor(tensor, dtype, arena.data() + (p.offset + tensor.as.row * row) * Bytes(dtype)));
  }
  return OkStatus();
}

Status GgufFolder::Read(DType dtype, const BlockLayout& blocks, std::span<std::byte> arena) const {
  TP_CHECK(static_cast<int64_t>(arena.size()) >= blocks.bytes) << arena.size() << " for " << blocks.bytes;
  const std::vector<Parameter> layout = Layout(spec_);
  for (const Tensor& tensor : tensors_) {
    const auto i = static_cast<size_t>(tensor.as.index);
    const int64_t k = layout[i].numel() / layout[i].shape[0];
    const BlockType type = blocks.types[i];
    std::byte* out = arena.data() + blocks.at[i];
    if (type == BlockType::kNone) {
      TP_RETURN_IF_ERROR(ReadTensor(tensor, dtype, out + tensor.as.row * k * Bytes(dtype)));
    } else {
      TP_RETURN_IF_ERROR(ReadBlocks(tensor, out + device::BlockRowBytes(type, tensor.as.row, k)));
    }
  }
  return OkStatus();
}

StatusOr<std::vector<std::byte>> GgufFolder::Narrow(const std::string& name) const {
  const auto found =
      std::ranges::find_if(tensors_, [&](const Tensor& tensor) { return tensor.as.name == name; });
  if (found == tensors_.end()) return NotFound(file_->path() + ": has no tensor " + name);
  std::vector<std::byte> values(static_cast<size_t>(2 * found->from.numel()));
  TP_RETURN_IF_ERROR(ReadTensor(*found, DType::kBFloat16, values.data()));
  return values;
}

StatusOr<std::string> GgufFolder::Fingerprint() const {
  std::map<std::string_view, const Tensor*> by_name;  // as safetensors are listed
  for (const Tensor& tensor : tensors_) by_name[tensor.as.name] = &tensor;
  FingerprintSum sum;
  for (const auto& [name, tensor] : by_name) {
    std::vector<std::byte> values(static_cast<size_t>(2 * tensor->from.numel()));
    TP_RETURN_IF_ERROR(ReadTensor(*tensor, DType::kBFloat16, values.data()));
    sum.Add(std::string(name), tensor->from.shape, files::DType::kBF16, values);
  }
  return sum.Finish();
}

std::string GgufFolder::Digest() const {
  uint64_t digest = 0;
  for (const Tensor& tensor : tensors_) {
    const uint64_t salt = Hash64(tensor.as.name + " " + files::GgufTypeName(tensor.from.tensor->type) +
                                 files::ShapeText(tensor.from.shape));
    digest = Mix64(digest ^ salt) + SaltedSum(tensor.from.tensor->bytes, salt);
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, digest);
  return text;
}

}  // namespace tidepool::model
