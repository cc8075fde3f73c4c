// model.safetensors.index.json beside two good shards: whatever it says, nothing outside the folder is
// opened.
#include "core/files/safetensors.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const fuzz::ScratchFolder folder;
  static const bool written = [] {
    const std::string bytes(16, 'x');
    for (const char* shard : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
      const std::string name = shard[10] == '1' ? "a" : "b";
      (void)files::WriteSafetensors(
          folder.path() + "/" + shard,
          {files::SourceOf(name, files::DType::kF32, {4}, std::as_bytes(std::span(bytes)))});
    }
    return true;
  }();
  (void)written;
  folder.Write("model.safetensors.index.json", fuzz::View(data, size));
  const auto opened = files::SafetensorsFolder::Open(folder.path());
  if (!opened.ok()) return 0;
  for (const auto& [name, entry] : (*opened)->tensors()) {
    if (entry.file->path().rfind(folder.path() + "/", 0) != 0 ||
        entry.file->path().find("..") != std::string::npos)
      std::abort();
  }
  return 0;
}
