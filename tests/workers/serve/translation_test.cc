// Requests of OpenAI's form to turns, and what is heard of a turn to answers, without HTTP and without a
// model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/text/tool_calls.h"
#include "workers/serve/answer_text.h"
#include "workers/serve/answer_writer.h"
#include "workers/serve/openai_request.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Letters, digits and what JSON needs, a token each; ids of characters from 3 on, <eos> is 2.
constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789 =<>/_{}[]\":,.\n";

const char* const kTagged = R"({% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif -%}
{% for m in messages %}<bos>{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.a }}{% endfor %}{% endfor %})";

std::unique_ptr<ServedModel> Model(const std::string& chat = kTagged) {
  const std::string dir = testing::TempDir() + "/served";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_TRUE(text::WriteCharacterTokenizer(kAlphabet, dir).ok());
  auto model = std::make_unique<ServedModel>();
  model->name = "tiny";
  model->tokenizer = *text::Tokenizer::Load(dir);
  if (!chat.empty()) {
    model->template_text = *text::ChatTemplate::FromSource(chat, {}, "template");
    model->tools = ToolFormatOf(*model->template_text);
  }
  model->vocab_size = model->tokenizer->vocab_size();
  model->max_tokens = 400;
  std::filesystem::remove_all(dir);
  return model;
}

AskedTurn Read(const ServedModel& model, const Json& body, AnswerForm form = AnswerForm::kCompletion) {
  auto read = ReadRequest(form, body.dump(), model);
  if (const auto* error = std::get_if<ApiError>(&read)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<AskedTurn>(std::move(read));
}
ApiError Refused(const ServedModel& model, const Json& body, AnswerForm form = AnswerForm::kCompletion) {
  auto read = ReadRequest(form, body.dump(), model);
  if (const auto* error = std::get_if<ApiError>(&read)) return *error;
  ADD_FAILURE() << body.dump() << " is taken";
  return {};
}

TurnDelta Delta(const ServedModel& model, const std::string& text, TurnEnd end = TurnEnd::kNone,
                int64_t choice = 0) {
  TurnDelta delta{.choice = choice, .end = end};
  delta.tokens.ids = *model.tokenizer->Encode(text);
  delta.tokens.logprobs.assign(delta.tokens.ids.size(), -0.5F);
  if (!text.empty()) delta.tokens.versions = {{Version{0, 3}, static_cast<int64_t>(delta.tokens.ids.size())}};
  return delta;
}

TEST(OpenAiRequestTest, SaysHowTokensAreDrawn) {
  const auto model = Model();
  const AskedTurn asked = Read(*model, {{"model", "tiny"},
                                        {"prompt", {"ab", "c"}},
                                        {"max_tokens", 5},
                                        {"temperature", 0.5},
                                        {"top_p", 0.9},
                                        {"top_k", 7},
                                        {"min_p", 0.1},
                                        {"seed", -3},
                                        {"n", 2},
                                        {"stop", "x"},
                                        {"stop_token_ids", {4}},
                                        {"stream", true},
                                        {"logprobs", 0}});
  const Turn& turn = asked.turn;
  EXPECT_EQ(turn.prompts.size(), 2U);
  EXPECT_EQ(turn.choices(), 4);
  EXPECT_EQ(turn.max_new_tokens, 5);
  EXPECT_EQ(turn.seed, -3);
  const down::ChunkSampling& s = turn.sampling;
  EXPECT_TRUE(s.given);
  EXPECT_EQ(std::tuple(s.temperature, s.top_p, s.top_k, s.min_p), std::tuple(0.5, 0.9, 7, 0.1));
  EXPECT_EQ(s.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(s.stop_token_ids, std::vector<int32_t>{4});
  EXPECT_TRUE(asked.style.stream && asked.style.logprobs);
  // Ids are taken as they are; what is missing has OpenAI's defaults.
  const AskedTurn ids = Read(*model, {{"prompt", {3, 4}}});
  EXPECT_EQ(ids.turn.prompts, (std::vector<std::vector<int32_t>>{{3, 4}}));
  EXPECT_EQ(ids.turn.max_new_tokens, 16);
  EXPECT_EQ(ids.turn.sampling.temperature, 1);
  EXPECT_FALSE(ids.turn.seed.has_value());
  EXPECT_EQ(Read(*model, {{"prompt", {{3}, {4, 5}}}, {"top_k", -1}}).turn.prompts.size(), 2U);
}

TEST(OpenAiRequestTest, AChatHasAllTheRoomThatThereIs) {
  const auto model = Model();
  const Json messages = {{{"role", "developer"}, {"content", {{{"type", "text"}, {"text", "be"}}}}},
                         {{"role", "user"}, {"content", "hi"}}};
  const AskedTurn asked = Read(*model, {{"messages", messages}}, AnswerForm::kChat);
  ASSERT_EQ(asked.turn.prompts.size(), 1U);
  EXPECT_EQ(model->tokenizer->Decode(asked.turn.prompts[0]), "<bos>system:be<bos>user:hi");
  EXPECT_EQ(asked.turn.max_new_tokens, 400 - static_cast<int64_t>(asked.turn.prompts[0].size()));
  EXPECT_EQ(Read(*model, {{"messages", messages}, {"max_completion_tokens", 9}}, AnswerForm::kChat)
                .turn.max_new_tokens,
            9);
  EXPECT_THAT(Refused(*model, {{"messages", messages}, {"max_tokens", 1}, {"max_completion_tokens", 2}},
                      AnswerForm::kChat)
                  .message,
              HasSubstr("another than"));
  const auto plain = Model("");
  EXPECT_THAT(Refused(*plain, {{"messages", messages}}, AnswerForm::kChat).message,
              HasSubstr("no chat template"));
}

TEST(OpenAiRequestTest, NamesTheFieldThatIsWrong) {
  const auto model = Model();
  const Json good = {{"prompt", "ab"}};
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{{"temperature", -0.1},
                                                                              {"temperature", "1"},
                                                                              {"top_p", 0},
                                                                              {"top_k", -2},
                                                                              {"n", 0},
                                                                              {"n", 129},
                                                                              {"seed", 1.5},
                                                                              {"stop", {1}},
                                                                              {"stop", {""}},
                                                                              {"logprobs", 1},
                                                                              {"best_of", 2},
                                                                              {"suffix", "x"},
                                                                              {"echo", "yes"},
                                                                              {"max_tokens", -1},
                                                                              {"max_tokens", 399},
                                                                              {"logit_bias", 1},
                                                                              {"prompt", Json::array()},
                                                                              {"prompt", {3, 1000}},
                                                                              {"prompt", {"a", 3}},
                                                                              {"prompt", "\xC3\xA9"},
                                                                              {"model", "other"},
                                                                              {"nonsense", 1},
                                                                              {"min_p", 1},
                                                                              {"stream", 1}}) {
    Json body = good;
    body[field] = value;
    const ApiError error = Refused(*model, body);
    EXPECT_EQ(error.param.substr(0, error.param.find('[')), field) << error.message;
    EXPECT_EQ(error.status, field == "model" ? 404 : 400);
    body[field] = nullptr;  // as if it were missing
    if (field != "prompt") (void)Read(*model, body);
  }
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"top_p", 1e-50}, {"min_p", 0.9999999999}}) {
    Json body = good;
    body[field] = value;  // the engine has them in 32 bits
    EXPECT_EQ(Refused(*model, body).param, field);
  }
  const ApiError long_name = Refused(*model, {{"prompt", "ab"}, {std::string(1 << 20, 'x'), 1}});
  EXPECT_LT(long_name.message.size() + long_name.param.size(), 4096U);
  EXPECT_THAT(long_name.message, HasSubstr("no such field"));
  EXPECT_LT(Refused(*model, {{"prompt", "ab"}, {"model", std::string(1 << 20, 'x')}}).message.size(), 4096U);
  Json many = good;
  for (int i = 0; i < 257; ++i) many["metadata"]["k" + std::to_string(i)] = i;
  EXPECT_THAT(Refused(*model, many).message, HasSubstr("256 keys"));
  many["metadata"].erase("k0");
  (void)Read(*model, many);
  EXPECT_THAT(Refused(*model, Json::object()).message, HasSubstr("missing"));
  for (const char* body : {"", "{", "[]", "3", "{\"prompt\":\"a\"}x"})
    EXPECT_TRUE(std::holds_alternative<ApiError>(ReadRequest(AnswerForm::kChat, body, *model))) << body;
}

TEST(OpenAiRequestTest, ToolsAndCallsGoToTheTemplateAsItWantsThem) {
  const auto model = Model();
  ASSERT_EQ(model->tools, text::ToolFormat::kTagged);
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const Json call = {
      {"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"a\":\"seven\"}"}}}};
  const Json messages = {{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}}};
  const Json body = {{"messages", messages}, {"tools", {tool}}};
  const AskedTurn asked = Read(*model, body, AnswerForm::kChat);
  const std::string prompt = model->tokenizer->Decode(asked.turn.prompts[0]);
  EXPECT_THAT(prompt, HasSubstr("\"name\": \"f\""));
  EXPECT_THAT(prompt, HasSubstr("seven"));
  EXPECT_EQ(asked.style.tools, std::vector<std::string>{"f"});
  Json none = body;
  none["tool_choice"] = "none";
  EXPECT_TRUE(Read(*model, none, AnswerForm::kChat).style.tools.empty());
  Json forced = body;
  forced["tool_choice"] = "required";
  EXPECT_EQ(Refused(*model, forced, AnswerForm::kChat).param, "tool_choice");
  Json wrong = body;
  wrong["messages"][0]["tool_calls"][0]["function"]["arguments"] = "seven";
  EXPECT_EQ(Refused(*model, wrong, AnswerForm::kChat).param, "messages[0].tool_calls[0].function.arguments");
  const auto without = Model("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(without->tools, text::ToolFormat::kNone);
  EXPECT_EQ(Refused(*without, {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"tools", {tool}}},
                    AnswerForm::kChat)
                .param,
            "tools");
}

TEST(AnswerTextTest, NothingOfAStopStringIsShownAndNoCharacterIsCut) {
  const auto model = Model();
  for (const auto& [stops, text, shown] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"stop"}, "ab stop cd", "ab "},
           {{"stop"}, "ab sto", "ab sto"},
           {{"bc", "abcd"}, "xabcd", "xa"},
           {{"aab"}, "aaab", "a"},
           {{}, "abc", "abc"},
           {{"c", "abc"}, "abc", ""}}) {
    AnswerText whole(*model->tokenizer, stops), bits(*model->tokenizer, stops);
    const std::vector<int32_t> ids = *model->tokenizer->Encode(text);
    std::string at_once = whole.Push(ids);
    at_once += whole.Finish();
    EXPECT_EQ(at_once, shown);
    std::string said;
    for (const int32_t id : ids) {
      said += bits.Push(std::vector{id});
      EXPECT_TRUE(shown.starts_with(said)) << said;
    }
    EXPECT_EQ(said + bits.Finish(), shown);
    EXPECT_EQ(whole.stopped_by().empty(), shown == text);
  }
}

TEST(ToolTextTest, CallsAreToldFromText) {
  struct Case {
    text::ToolFormat format;
    std::string written, text;
    std::vector<std::string> calls;
  };
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)";
  for (const Case& c : std::vector<Case>{
           {text::ToolFormat::kTagged, "say " + call + " and", "say and", {R"(f{"a":1})"}},
           {text::ToolFormat::kTagged, call + call, "", {R"(f{"a":1})", R"(f{"a":1})"}},
           {text::ToolFormat::kTagged,
            R"(<tool_call>[{"name":"f"},{"name":"g","arguments":{}}]</tool_call>)",
            "",
            {"f{}", "g{}"}},
           {text::ToolFormat::kTagged,
            R"(<tool_call>{"name": "f"})",
            "",
            {"f{}"}},  // the end token stands for the tag
           {text::ToolFormat::kTagged,
            R"(<tool_call>{"name": "h"}</tool_call>x)",
            R"(<tool_call>{"name": "h"}</tool_call>x)",
            {}},
           {text::ToolFormat::kTagged, "<tool_call>{</tool_call>", "<tool_call>{</tool_call>", {}},
           {text::ToolFormat::kTagged, "a <tool", "a <tool", {}},
           {text::ToolFormat::kJson, R"({"name": "f", "parameters": {"a": [2]}})", "", {R"(f{"a":[2]})"}},
           {text::ToolFormat::kJson,
            R"({"name": "f", "parameters": 3})",
            R"({"name": "f", "parameters": 3})",
            {}},
           {text::ToolFormat::kJson, "no {}", "no {}", {}},
           {text::ToolFormat::kNone, call, call, {}}}) {
    for (const size_t step : {size_t{1}, size_t{5}, c.written.size()}) {
      text::ToolText tools(c.format, std::vector<std::string>{"f", "g"});
      std::string text;
      std::vector<std::string> calls;
      const auto take = [&](const std::vector<text::ToolPiece>& pieces) {
        for (const text::ToolPiece& piece : pieces) {
          text += piece.text;
          if (piece.call) calls.push_back(piece.call->name + piece.call->arguments);
        }
      };
      for (size_t i = 0; i < c.written.size(); i += step) take(tools.Push(c.written.substr(i, step)));
      take(tools.Finish());
      EXPECT_EQ(text, c.text) << c.written << " by " << step;
      EXPECT_EQ(calls, c.calls) << c.written << " by " << step;
    }
  }
}

TEST(OpenAiAnswerTest, AWholeAnswerHasItsParts) {
  const auto model = Model();
  const AskedTurn asked =
      Read(*model,
           {{"prompt", {3, 4}}, {"stop", "z"}, {"logprobs", 0}, {"return_token_ids", true}, {"echo", false}});
  const auto answer = AnswerWriter::Make(*model, asked, "x", 12);
  EXPECT_TRUE(answer->Begin().empty());
  EXPECT_TRUE(answer->Add(Delta(*model, "cd")).empty());
  EXPECT_FALSE(answer->done());
  (void)answer->Add(Delta(*model, "ez", TurnEnd::kStop));
  ASSERT_TRUE(answer->done());
  const Json said = answer->Whole();
  const Json& choice = said["choices"][0];
  EXPECT_EQ(choice["text"], "cde");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "z");
  EXPECT_EQ(choice["token_ids"].size(), 4U);
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(choice["weight_versions"].dump(), R"([{"version":3,"start":0,"end":4}])");
  EXPECT_EQ(choice["prompt_token_ids"], Json(asked.turn.prompts[0]));
  EXPECT_EQ(said["usage"].dump(), R"({"prompt_tokens":2,"completion_tokens":4,"total_tokens":6})");
  EXPECT_EQ(said["object"], "text_completion");
}

TEST(OpenAiAnswerTest, AStreamOfCallsIsAListThatGrows) {
  const auto model = Model();
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                     {"tools", {tool}},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  const AskedTurn asked = Read(*model, body, AnswerForm::kChat);
  const auto answer = AnswerWriter::Make(*model, asked, "x", 12);
  EXPECT_EQ(answer->Begin().size(), 1U);
  std::vector<Json> deltas;
  for (const std::string& part : {"go <tool_c", "all>{\"name\":\"f\",", "\"arguments\":{}}</tool_call>"})
    for (const AnswerEvent& event : answer->Add(Delta(*model, part)))
      deltas.push_back(Json::parse(event.data)["choices"][0]["delta"]);
  EXPECT_EQ(deltas[0]["content"], "go ");
  EXPECT_TRUE(deltas[1].empty());
  EXPECT_EQ(deltas[2]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(deltas[2]["tool_calls"][0]["function"].dump(), R"({"name":"f","arguments":"{}"})");
  const std::vector<AnswerEvent> last = answer->Add(Delta(*model, "", TurnEnd::kEnd));
  EXPECT_EQ(Json::parse(last[0].data)["choices"][0]["finish_reason"], "tool_calls");
  const std::vector<AnswerEvent> end = answer->Last();
  ASSERT_EQ(end.size(), 2U);
  EXPECT_EQ(Json::parse(end[0].data)["usage"]["prompt_tokens"], asked.turn.prompts[0].size());
  EXPECT_EQ(end[1].data, "[DONE]");
}

// A conversation in the three forms that have one.
TEST(AnswerFormsTest, OneConversationIsOnePromptInEveryForm) {
  const auto model = Model();
  const Json schema = {{"type", "object"}};
  const Json chat = {
      {"messages",
       {{{"role", "system"}, {"content", "be"}},
        {{"role", "user"}, {"content", "one"}},
        {{"role", "assistant"},
         {"content", "two"},
         {"tool_calls",
          {{{"id", "c"},
            {"type", "function"},
            {"function", {{"name", "f"}, {"arguments", "{\"a\":\"z\"}"}}}}}}},
        {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "three"}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}}},
      {"max_tokens", 7}};
  const Json responses = {
      {"instructions", "be"},
      {"input",
       {{{"role", "user"}, {"content", "one"}},
        {{"type", "message"},
         {"role", "assistant"},
         {"content", {{{"type", "output_text"}, {"text", "two"}}}}},
        {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{\"a\":\"z\"}"}},
        {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "three"}}}},
      {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", schema}}}},
      {"max_output_tokens", 7}};
  const Json messages = {
      {"system", "be"},
      {"messages",
       {{{"role", "user"}, {"content", "one"}},
        {{"role", "assistant"},
         {"content",
          {{{"type", "text"}, {"text", "two"}},
           {{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", {{"a", "z"}}}}}}},
        {{"role", "user"},
         {"content", {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", "three"}}}}}}},
      {"tools", {{{"name", "f"}, {"input_schema", schema}}}},
      {"max_tokens", 7}};
  const AskedTurn as_chat = Read(*model, chat, AnswerForm::kChat);
  for (const auto& [form, body] :
       {std::pair(AnswerForm::kResponses, responses), std::pair(AnswerForm::kMessages, messages)}) {
    const AskedTurn asked = Read(*model, body, form);
    ASSERT_EQ(asked.turn.prompts.size(), 1U);
    EXPECT_EQ(model->tokenizer->Decode(asked.turn.prompts[0]),
              model->tokenizer->Decode(as_chat.turn.prompts[0]));
    EXPECT_EQ(asked.turn.max_new_tokens, 7);
    EXPECT_EQ(asked.style.tools, as_chat.style.tools);
  }
  for (const auto& [field, value, param] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"store", true, "store"},
           {"previous_response_id", "x", "previous_response_id"},
           {"tool_choice", "required", "tool_choice"},
           {"input", {{{"type", "reasoning"}}}, "input[0].type"},
           {"input", 3, "input"},
           {"max_tokens", 3, "max_tokens"},
           {"tools", {{{"type", "web_search"}, {"name", "x"}}}, "tools[0].type"}}) {
    Json body = responses;
    body[field] = value;
    EXPECT_EQ(Refused(*model, body, AnswerForm::kResponses).param, param);
  }
  for (const auto& [field, value, param] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"max_tokens", nullptr, "max_tokens"},
           {"thinking", {{"type", "enabled"}}, "thinking"},
           {"tool_choice", {{"type", "any"}}, "tool_choice.type"},
           {"messages",
            {{{"role", "user"}, {"content", {{{"type", "image"}}}}}},
            "messages[0].content[0].type"},
           {"stop_sequences", {""}, "stop_sequences"}}) {
    Json body = messages;
    body[field] = value;
    EXPECT_EQ(Refused(*model, body, AnswerForm::kMessages).param, param);
  }
}

TEST(AnswerFormsTest, BlocksAreOneListHoweverTheyCome) {
  const auto model = Model();
  const Json tools = {{{"name", "f"}}};
  const std::string written = "so <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call> ok";
  for (const size_t step : {size_t{1}, size_t{7}, written.size()}) {
    for (const bool stream : {false, true}) {
      const AskedTurn messages = Read(*model,
                                      {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                                       {"tools", tools},
                                       {"max_tokens", 99},
                                       {"stream", stream}},
                                      AnswerForm::kMessages);
      const AskedTurn responses =
          Read(*model, {{"input", "a"}, {"tools", tools}, {"stream", stream}}, AnswerForm::kResponses);
      for (const AskedTurn& asked : {messages, responses}) {
        const auto answer = AnswerWriter::Make(*model, asked, "x", 12);
        std::vector<AnswerEvent> events = stream ? answer->Begin() : std::vector<AnswerEvent>();
        for (size_t i = 0; i < written.size(); i += step)
          for (AnswerEvent& e : answer->Add(Delta(*model, written.substr(i, step)))) events.push_back(e);
        for (AnswerEvent& e : answer->Add(Delta(*model, "", TurnEnd::kEnd))) events.push_back(e);
        const bool of_messages = asked.style.form == AnswerForm::kMessages;
        Json whole;
        std::string text, arguments;
        if (stream) {
          for (AnswerEvent& e : answer->Last()) events.push_back(e);
          for (const AnswerEvent& e : events) {
            const Json json = Json::parse(e.data);
            EXPECT_EQ(json["type"], e.name);
            if (e.name == "response.completed") whole = json["response"];
            if (e.name == "response.output_text.delta") text += json["delta"].get<std::string>();
            if (e.name == "response.function_call_arguments.delta")
              arguments += json["delta"].get<std::string>();
            if (e.name != "content_block_delta") continue;
            text += json["delta"].value("text", "");
            arguments += json["delta"].value("partial_json", "");
          }
          EXPECT_EQ(text, "so ok");
          EXPECT_EQ(arguments, "{\"a\":1}");
          EXPECT_EQ(events.back().name, of_messages ? "message_stop" : "response.completed");
          if (of_messages) continue;
        } else {
          EXPECT_TRUE(events.empty());
          whole = answer->Whole();
        }
        const Json& blocks = whole[of_messages ? "content" : "output"];
        ASSERT_EQ(blocks.size(), 3U) << whole.dump();
        EXPECT_EQ(blocks[1]["name"], "f");
        if (of_messages) {
          EXPECT_EQ(blocks[1]["input"].dump(), "{\"a\":1}");
          EXPECT_EQ(whole["stop_reason"], "tool_use");
        } else {
          EXPECT_EQ(blocks[2]["content"][0]["text"], "ok");
          EXPECT_EQ(whole["status"], "completed");
          EXPECT_EQ(whole["usage"]["output_tokens"], written.size());
        }
      }
    }
  }
}

TEST(ToolTextTest, ATurnIsReadWholeAndCallsOfAnyNameAreCalls) {
  const std::string call = R"(<tool_call>{"name": "h", "arguments": {"a": 1}}</tool_call>)";
  const auto tagged =
      text::ReadToolTurn(text::ToolFormat::kTagged, "so " + call + "<tool_call>{</tool_call>");
  ASSERT_EQ(tagged.calls.size(), 1U);
  EXPECT_EQ(tagged.calls[0].name + tagged.calls[0].arguments, R"(h{"a":1})");
  EXPECT_EQ(tagged.text, "so <tool_call>{</tool_call>");
  EXPECT_EQ(tagged.broken, "<tool_call>{</tool_call>");
  EXPECT_EQ(text::ReadToolTurn(text::ToolFormat::kTagged, "<tool_call>{").broken, "<tool_call>{");
  EXPECT_EQ(text::ReadToolTurn(text::ToolFormat::kTagged, "no call").broken, "");
  const auto json = text::ReadToolTurn(text::ToolFormat::kJson, R"({"name": "h", "parameters": {}})");
  ASSERT_EQ(json.calls.size(), 1U);
  EXPECT_EQ(text::ReadToolTurn(text::ToolFormat::kJson, R"({"name": 3})").broken, R"({"name": 3})");
}

}  // namespace
}  // namespace tidepool::workers
