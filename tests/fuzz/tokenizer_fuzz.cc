// tokenizer.json; what is accepted encodes and decodes.
#include "core/text/tokenizer.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  const auto tokenizer = text::Tokenizer::FromJson(fuzz::View(data, size), "input");
  if (!tokenizer.ok()) return 0;
  for (const char* sample : {"", "Hello world, it's 12345 \xc3\xa9\xe6\x97\xa5 <s> ab  \n\n x", "a a"}) {
    const auto ids = (*tokenizer)->Encode(sample, {.add_special = true, .leave_out = true});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
    }
    (void)(*tokenizer)->Decode(*ids, true);
  }
  const int32_t ids[] = {0, 1, 2, 7, 300, 1 << 30, (*tokenizer)->vocab_size() - 1};
  (void)(*tokenizer)->Decode(ids);
  return 0;
}
