// A GGUF file: header, tensors as values, and the whole import.
#include "core/files/gguf.h"
#include "core/files/gguf_hugging_face.h"
#include "core/model/gguf_import.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const fuzz::ScratchFolder folder;
  const auto file = files::GgufFile::FromBytes(std::as_bytes(std::span(data, size)), "input");
  if (!file.ok()) return 0;
  for (const files::GgufTensor& t : (*file)->tensors()) {
    if (t.numel() < 0 || t.numel() > 1 << 20) continue;
    std::vector<float> values(static_cast<size_t>(t.numel()));
    (void)files::Dequantize(t, 0, values);
  }
  const auto tensors = files::HuggingFaceTensors(**file);
  if (tensors.ok()) {
    for (const files::GgufHuggingFaceTensor& t : *tensors) {
      if (t.numel() > 1 << 20) continue;
      std::vector<float> values(static_cast<size_t>(t.numel()));
      (void)files::ReadHuggingFaceTensor(t, values);
    }
  }
  folder.Write("in.gguf", fuzz::View(data, size));
  (void)model::ImportGguf(folder.path() + "/in.gguf", folder.path() + "/out");
  return 0;
}
