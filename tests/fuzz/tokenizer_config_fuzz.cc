// tokenizer_config.json, with special tokens and templates inside.
#include "core/text/chat_template.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const fuzz::ScratchFolder folder;
  folder.Write("tokenizer_config.json", fuzz::View(data, size));
  const auto loaded = text::ChatTemplate::Load(folder.path());
  if (loaded.ok())
    (void)(*loaded)->Render(nlohmann::ordered_json::array({{{"role", "user"}, {"content", "x"}}}));
  return 0;
}
