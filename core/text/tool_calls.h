#pragma once
// Calls of tools in what a model writes, in the form that its own chat template asks it for.
//
//   kTagged   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, one or several, text around them; a
//             list of calls within the tags is read, too (Qwen, Hermes)
//   kJson     the whole answer is {"name": "f", "parameters": {...}} (Llama 3)

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/chat_template.h"

namespace tidepool::text {

enum class ToolFormat { kNone, kTagged, kJson };

// Reads it off a conversation with a tool, rendered. kNone: the template passes tools over, or asks for a
// form that is none of these.
ToolFormat ToolFormatOf(const ChatTemplate& chat);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// What a model writes, in its order: text, or a call.
struct ToolPiece {
  std::string text;
  std::optional<ToolCall> call;  // then there is no text
};

// Tells calls from text, as the text comes. What is no call stays text, as it was written: a call that is no
// JSON, or of a tool that there is not. White space behind a call belongs to it. Not thread-safe.
class ToolText {
 public:
  // `names`: of the tools that there are; nullopt: a call of any is one.
  ToolText(ToolFormat format, std::optional<std::vector<std::string>> names)
      : format_(format), names_(std::move(names)) {}

  std::vector<ToolPiece> Push(std::string_view text);
  std::vector<ToolPiece> Finish();  // nothing more comes

 private:
  // False: it is no call, and nothing is added.
  bool TakeCalls(std::string_view json, std::vector<ToolPiece>* pieces) const;

  const ToolFormat format_;
  const std::optional<std::vector<std::string>> names_;
  std::string held_;
  bool after_call_ = false;
};

// What a model reads of an environment's tools whose template shows none: each as a line of JSON, and the
// tagged form.  `tools`: as a template takes them
std::string PlainTools(const nlohmann::ordered_json& tools);

// A turn of a model, whole, for whoever answers its calls.
struct ToolTurn {
  std::string text;  // without its calls
  std::vector<ToolCall> calls;
  std::string
      broken;  // the first thing that looks like a call and cannot be read as one; empty: there is none
};
// Calls of any name are taken: whether there is such a tool is for the one who has the tools to say.
ToolTurn ReadToolTurn(ToolFormat format, std::string_view text);

}  // namespace tidepool::text
