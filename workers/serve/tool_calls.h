#pragma once
// Calls of tools in what a model writes, in the form that its own chat template asks it for.
//
//   kTagged   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, one or several, text around them; a
//             list of calls within the tags is read, too (Qwen, SmolLM, Hermes)
//   kJson     the whole answer is {"name": "f", "parameters": {...}} (Llama 3)

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/chat_template.h"

namespace tidepool::workers {

enum class ToolFormat { kNone, kTagged, kJson };

// Reads it off a conversation with a tool, rendered. kNone: the template passes tools over, or asks for a
// form that is none of these.
ToolFormat ToolFormatOf(const text::ChatTemplate& chat);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// Tells calls from text, as the text comes. What is no call stays text, as it was written: a call that is no
// JSON, or of a tool that there is not. Not thread-safe.
class ToolText {
 public:
  ToolText(ToolFormat format, std::vector<std::string> names) : format_(format), names_(std::move(names)) {}

  struct Part {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Part Push(std::string_view text);
  Part Finish();  // nothing more comes

 private:
  bool TakeCalls(std::string_view json, std::vector<ToolCall>* calls) const;

  const ToolFormat format_;
  const std::vector<std::string> names_;
  std::string held_;
};

}  // namespace tidepool::workers
