// A safetensors file.
#include <span>

#include "core/files/safetensors.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const fuzz::ScratchFolder folder;
  const auto header = files::ParseSafetensorsHeader(std::as_bytes(std::span(data, size)),
                                                    static_cast<int64_t>(size), "input");
  folder.Write("model.safetensors", fuzz::View(data, size));
  const auto file = files::SafetensorsFile::Open(folder.path() + "/model.safetensors");
  if (header.ok() != file.ok()) std::abort();  // the file is the header's bytes and no others
  if (!file.ok()) return 0;
  uint8_t sum = 0;
  for (const files::TensorInfo& t : (*file)->tensors()) {
    for (const std::byte b : (*file)->Bytes(t)) sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(b));
    if ((*file)->Find(t.name) != &t) std::abort();
  }
  return sum == 0 ? 0 : 0;
}
