#include "core/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text/tokenizer.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::text {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json kMessages =
    Json::array({{{"role", "user"}, {"content", "2 + 2"}}, {{"role", "assistant"}, {"content", "4"}}});

std::string Render(const std::string& folder, const ChatOptions& options = {}) {
  const auto chat = ChatTemplate::Load(folder);
  if (!chat.ok()) return "error: " + chat.status().ToString();
  const auto text = (*chat)->Render(kMessages, options);
  return text.ok() ? *text : "error: " + text.status().ToString();
}

TEST(ChatTemplateTest, TheFileComesBeforeTheConfig) {
  TestFolder folder;
  (void)folder.Write("tokenizer_config.json",
                     R"({"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<s>"}})");
  EXPECT_EQ(Render(folder.path()), "config <s>");
  (void)folder.Write("chat_template.jinja", "file {{ bos_token }}{{ eos_token is defined }}");
  EXPECT_EQ(Render(folder.path()), "file <s>False");
}

TEST(ChatTemplateTest, AListHasADefaultAndOneForTools) {
  TestFolder folder;
  (void)folder.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ tools[0].x }}"}]})");
  EXPECT_EQ(Render(folder.path()), "d");
  ChatOptions options;
  options.tools = Json::array({{{"x", 1}}});
  EXPECT_EQ(Render(folder.path(), options), "t1");
}

TEST(ChatTemplateTest, RendersConversations) {
  const auto chat = ChatTemplate::FromSource(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ 'x' if thinking }}",
      {{"eos_token", "</s>"}}, "t");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(*(*chat)->Render(kMessages), "<|user|>2 + 2</s><|assistant|>4</s>");
  ChatOptions options;
  options.add_generation_prompt = true;
  options.variables["thinking"] = true;
  EXPECT_EQ(*(*chat)->Render(Json::array(), options), "<|assistant|>x");
}

TEST(ChatTemplateTest, ErrorsSayWhere) {
  TestFolder folder;
  EXPECT_THAT(Render(folder.path()), HasSubstr("has no chat template"));
  (void)folder.Write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  EXPECT_THAT(Render(folder.path()),
              HasSubstr("chat_template.jinja: line 1: the chat template refused: roles must alternate"));
  (void)folder.Write("chat_template.jinja", "\n{% if %}");
  EXPECT_THAT(Render(folder.path()), HasSubstr("line 2"));
  EXPECT_EQ(ChatTemplate::FromSource("\xFF", {}, "t").status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE((*ChatTemplate::FromSource("x", {}, "t"))->Render(Json::object()).ok());
}

TEST(ChatTemplateTest, TheCharacterTokenizerHasOne) {
  TestFolder folder;
  ASSERT_TRUE(WriteCharacterTokenizer("0123456789+ ", folder.path()).ok());
  EXPECT_EQ(Render(folder.path()), "<bos>2 + 24<eos>");
}

// Shapes of published templates; what they should give was checked against jinja2 (tests/interop).
TEST(ChatTemplateTest, TemplatesLikeThePublishedOnes) {
  const std::string templates = "tests/core/text/templates/";  // tests run in the root of the tree
  const auto render = [&](const std::string& name, bool tools) {
    std::ostringstream source;
    source << std::ifstream(templates + name).rdbuf();
    const auto chat =
        ChatTemplate::FromSource(source.str(), {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, name);
    ChatOptions options;
    options.add_generation_prompt = true;
    if (tools) options.tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
    return chat.ok() ? (*chat)->Render(kMessages, options).value() : chat.status().ToString();
  };
  EXPECT_EQ(
      render("chatml.jinja", false),
      "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n2 + 2<|im_end|>\n"
      "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render("turns_alternate.jinja", false),
            "<s><start_of_turn>user\n2 + "
            "2<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_THAT(render("tools_chatml.jinja", true),
              HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"));
  EXPECT_THAT(render("headers_with_date.jinja", false), HasSubstr("Today Date: 01 Jan 1970\n\n<|eot_id|>"));
  EXPECT_THAT(render("thinking.jinja", false),
              HasSubstr("<|im_start|>assistant\n<think>\n\n</think>\n\n4<|im_end|>\n"));
  EXPECT_EQ(render("instructions_macro.jinja", false), "<s>[INST] 2 + 2 [/INST] 4</s>");
}

// What these should give was made with transformers 5.23 (apply_chat_template).
TEST(ChatTemplateTest, AKeyThatIsNullCountsAsMissing) {
  const Json messages = Json::parse(R"([
      {"role": "user", "content": "Weather in Oslo?", "tool_calls": null},
      {"role": "assistant", "content": null, "tool_calls": [
          {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
      {"role": "tool", "content": "rain"}])");
  const auto render = [&](const std::string& source, bool with_tools) {
    const auto chat = ChatTemplate::FromSource(source, {{"bos_token", "<s>"}}, "t");
    ChatOptions options;
    if (with_tools) options.tools = Json::parse(R"([{"type": "function", "function": {"name": "weather"}}])");
    return chat.ok() ? (*chat)->Render(messages, options).value() : chat.status().ToString();
  };
  const std::string plain =
      "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] "
      "| trim "
      "+ '<|eot_id|>' }}{% endfor %}";
  for (const bool tools : {false, true}) {
    EXPECT_EQ(render(plain, tools),
              "<|start_header_id|>user<|end_header_id|>\n\nWeather in Oslo?<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n<|eot_id|>"
              "<|start_header_id|>tool<|end_header_id|>\n\nrain<|eot_id|>");
  }
  std::ostringstream with_date;
  with_date << std::ifstream("tests/core/text/templates/headers_with_date.jinja").rdbuf();
  const std::string call =
      "Weather in Oslo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"weather\", "
      "\"parameters\": {\"city\": "
      "\"Oslo\"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"rain\"";
  EXPECT_THAT(render(with_date.str(), false), HasSubstr(call));
  EXPECT_THAT(render(with_date.str(), true), HasSubstr(call));
  EXPECT_EQ(
      render(
          "{{ messages[1] is mapping }}{{ 'content' in messages[1] }}{{ messages[0].tool_calls is defined }}",
          false),
      "TrueFalseFalse");
}

TEST(ChatTemplateTest, ReasoningIsFoundUnderEachOfItsNames) {
  const auto chat = ChatTemplate::FromSource(
      "{% for m in messages %}{{ m.thinking }}/{{ m.reasoning_content }} {{ m.keys() | join(',') }};{% "
      "endfor %}",
      {}, "t");
  ASSERT_TRUE(chat.ok());
  const Json messages =
      Json::parse(R"([{"role": "a", "reasoning": "x"}, {"reasoning_content": "y", "thinking": "z"},
      {"role": "a", "reasoning_content": null, "thinking": "w"}, {"role": "u"}])");
  EXPECT_EQ((*chat)->Render(messages).value(),
            "x/x thinking,role,reasoning,reasoning_content;z/y thinking,reasoning_content;"
            "w/w thinking,role,reasoning_content;/ role;");
}

}  // namespace
}  // namespace tidepool::text
