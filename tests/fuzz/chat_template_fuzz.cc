// A chat template, rendered for a conversation with tools.
#include "core/text/chat_template.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": " Hi \n"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2.5, null]}}}]},
    {"role": "tool", "content": "{}"}])");
  static const auto tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const auto compiled = text::ChatTemplate::FromSource(
      std::string(fuzz::View(data, size)), {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "input");
  if (!compiled.ok()) return 0;
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.tools = tools;
  (void)(*compiled)->Render(messages, options);
  return 0;
}
