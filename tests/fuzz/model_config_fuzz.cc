// config.json, or (first byte odd) generation_config.json beside a good config.json.
#include "core/model/hugging_face.h"
#include "core/model/rope.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const fuzz::ScratchFolder folder;
  if (size == 0) return 0;
  const std::string_view text = fuzz::View(data + 1, size - 1);
  if (data[0] % 2 == 1) {
    folder.Write(
        "config.json",
        R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 99, "num_hidden_layers": 2})");
    folder.Write("generation_config.json", text);
  } else {
    folder.Write("config.json", text);
    folder.Remove("generation_config.json");
  }
  const auto spec = model::ReadSpec(folder.path());
  if (!spec.ok()) {
    if (spec.status().message().empty()) std::abort();
    return 0;
  }
  if (model::LayoutElements(*spec) <= 0) std::abort();
  (void)model::RopeFrequencies(*spec);
  if (spec->sparse_layers() * spec->moe.experts < 2000) (void)model::HuggingFaceTensors(*spec);
  (void)model::CheckHuggingFace(folder.path());  // without weights
  return 0;
}
