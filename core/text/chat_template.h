#pragma once
// Chat templates: messages to the text that a model was trained on.
//
// A template is a program in Jinja, from a file that others wrote, so it runs in an interpreter of our
// own (core/text/jinja) which has no access to anything but the values below and is limited in
// operations, depth and size of output. Semantics are those of jinja2 3.1 as transformers sets it up:
// trim_blocks, lstrip_blocks, an immutable sandbox, break and continue, {% generation %}, a `tojson`
// that keeps the order of keys and escapes nothing, raise_exception and strftime_now.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/status.h"

namespace tidepool::text {

namespace jinja {
class Template;
}

struct ChatOptions {
  bool add_generation_prompt = false;
  nlohmann::ordered_json tools = nullptr;                               // an array, or null for none
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  // further ones, e.g. enable_thinking
  int64_t unix_time_s = 0;  // what strftime_now sees (UTC); 0: 1970-01-01
};

// Immutable once loaded; thread-safe.
class ChatTemplate {
 public:
  // chat_template.jinja of `folder`, else `chat_template` of its tokenizer_config.json: a string or a
  // list of {name, template} (`tool_use` when tools are given, else `default`). Special tokens come
  // from tokenizer_config.json, or special_tokens_map.json. kNotFound if there is no template.
  static StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::string& folder);
  // A template by itself. `special_tokens`: bos_token, eos_token, ...; `where` opens each message.
  static StatusOr<std::unique_ptr<ChatTemplate>> FromSource(const std::string& source,
                                                            std::map<std::string, std::string> special_tokens,
                                                            const std::string& where);
  ~ChatTemplate();

  // `messages`: an array of objects, usually {"role", "content"}. As in transformers, a key with the value
  // null counts as missing, and reasoning_content, thinking and reasoning stand for each other.
  // kInvalidArgument: the template refused (raise_exception) or failed; kResourceExhausted: it ran into a
  // limit.
  [[nodiscard]] StatusOr<std::string> Render(const nlohmann::ordered_json& messages,
                                             const ChatOptions& options = {}) const;

  [[nodiscard]] const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  ChatTemplate();
  std::string where_;
  std::map<std::string, std::string> special_tokens_;
  std::unique_ptr<jinja::Template> default_;
  std::unique_ptr<jinja::Template> tool_use_;  // null: the default one
};

}  // namespace tidepool::text
