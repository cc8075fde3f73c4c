#include "workers/serve/block_answer.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tidepool::workers {

BlockAnswer::BlockAnswer(const ServedModel& model, const AskedTurn& asked, const std::string& id,
                         int64_t unix_s)
    : model_(model),
      id_(id),
      unix_s_(unix_s),
      prompt_tokens_(static_cast<int64_t>(asked.turn.prompts.front().size())),
      stream_(asked.style.stream),
      reader_(model, asked) {}

void BlockAnswer::Say(const std::string& type, Json fields) {
  if (!stream_) return;
  Json event = {{"type", type}};
  event.update(fields);
  said_.push_back({type, Dumped(event)});
}

std::string BlockAnswer::NameOf(const char* prefix, size_t index) const {
  return prefix + id_ + "-" + std::to_string(index);
}

bool BlockAnswer::called() const {
  return std::ranges::any_of(blocks_, [](const Block& b) { return b.call.has_value(); });
}

std::vector<AnswerEvent> BlockAnswer::Begin() {
  SayBegin();
  return std::exchange(said_, {});
}

void BlockAnswer::EndBlock() {
  if (std::exchange(open_, false)) SayBlockEnd(blocks_.size() - 1);
}

std::vector<AnswerEvent> BlockAnswer::Add(const TurnDelta& delta) {
  ChoicePart part = reader_.Read(delta);
  tokens_ += part.tokens.size();
  for (text::ToolPiece& piece : part.pieces) {
    const bool call = piece.call.has_value();
    const std::string text = call ? piece.call->arguments : std::move(piece.text);
    if (!open_ || call) {
      EndBlock();
      blocks_.push_back({"", std::move(piece.call)});
      SayBlock(blocks_.size() - 1);
      open_ = true;
    }
    blocks_.back().text += text;
    SayMore(blocks_.size() - 1, text);
    if (call) EndBlock();
  }
  end_ = part.end;
  stop_reason_ = std::move(part.stop_reason);
  return std::exchange(said_, {});
}

std::vector<AnswerEvent> BlockAnswer::Last() {
  EndBlock();
  SayEnd();
  return std::exchange(said_, {});
}

// --- responses

void ResponsesAnswer::SayNumbered(const std::string& type, Json fields) {
  fields["sequence_number"] = sequence_++;
  Say(type, std::move(fields));
}

nlohmann::ordered_json ResponsesAnswer::Item(size_t index, bool whole) const {
  const Block& block = blocks_[index];
  const char* status = !whole ? "in_progress" : end_ == TurnEnd::kLength ? "incomplete" : "completed";
  if (block.call)
    return {{"id", NameOf("fc-", index)}, {"type", "function_call"},
            {"status", status},           {"call_id", NameOf("call-", index)},
            {"name", block.call->name},   {"arguments", whole ? block.text : ""}};
  Json content = Json::array();
  if (whole)
    content.push_back({{"type", "output_text"},
                       {"text", block.text},
                       {"annotations", Json::array()},
                       {"logprobs", Json::array()}});
  return {{"id", NameOf("msg-", index)},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

nlohmann::ordered_json ResponsesAnswer::Response(bool whole) const {
  const bool cut = end_ == TurnEnd::kLength;
  Json output = Json::array();
  if (whole) {
    for (size_t i = 0; i < blocks_.size(); ++i) output.push_back(Item(i, true));
  }
  Json response = {{"id", "resp-" + id_},
                   {"object", "response"},
                   {"created_at", unix_s_},
                   {"status", !whole ? "in_progress"
                              : cut  ? "incomplete"
                                     : "completed"},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", model_.name},
                   {"output", std::move(output)},
                   {"parallel_tool_calls", true},
                   {"tool_choice", "auto"},
                   {"tools", Json::array()},
                   {"store", false},
                   {"usage", nullptr}};
  if (!whole) return response;
  if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  response["usage"] = {{"input_tokens", prompt_tokens_},
                       {"input_tokens_details", {{"cached_tokens", 0}}},
                       {"output_tokens", tokens_},
                       {"output_tokens_details", {{"reasoning_tokens", 0}}},
                       {"total_tokens", prompt_tokens_ + tokens_}};
  return response;
}

nlohmann::ordered_json ResponsesAnswer::Whole() { return Response(true); }

void ResponsesAnswer::SayBegin() {
  SayNumbered("response.created", {{"response", Response(false)}});
  SayNumbered("response.in_progress", {{"response", Response(false)}});
}

void ResponsesAnswer::SayBlock(size_t index) {
  const Json item = Item(index, false);
  SayNumbered("response.output_item.added", {{"output_index", index}, {"item", item}});
  if (blocks_[index].call) return;
  SayNumbered("response.content_part.added",
              {{"item_id", item["id"]},
               {"output_index", index},
               {"content_index", 0},
               {"part", {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}}}});
}

void ResponsesAnswer::SayMore(size_t index, const std::string& text) {
  if (blocks_[index].call)
    return SayNumbered("response.function_call_arguments.delta",
                       {{"item_id", NameOf("fc-", index)}, {"output_index", index}, {"delta", text}});
  SayNumbered("response.output_text.delta", {{"item_id", NameOf("msg-", index)},
                                             {"output_index", index},
                                             {"content_index", 0},
                                             {"delta", text},
                                             {"logprobs", Json::array()}});
}

void ResponsesAnswer::SayBlockEnd(size_t index) {
  const Json item = Item(index, true);
  if (blocks_[index].call) {
    SayNumbered("response.function_call_arguments.done", {{"item_id", item["id"]},
                                                          {"output_index", index},
                                                          {"name", item["name"]},
                                                          {"arguments", item["arguments"]}});
  } else {
    const Json where = {{"item_id", item["id"]}, {"output_index", index}, {"content_index", 0}};
    Json text = where, part = where;
    text["text"] = blocks_[index].text;
    text["logprobs"] = Json::array();
    part["part"] = item["content"][0];
    SayNumbered("response.output_text.done", std::move(text));
    SayNumbered("response.content_part.done", std::move(part));
  }
  SayNumbered("response.output_item.done", {{"output_index", index}, {"item", item}});
}

void ResponsesAnswer::SayEnd() {
  SayNumbered(end_ == TurnEnd::kLength ? "response.incomplete" : "response.completed",
              {{"response", Response(true)}});
}

// --- messages

nlohmann::ordered_json MessagesAnswer::Content(size_t index, bool whole) const {
  const Block& block = blocks_[index];
  if (!block.call) return {{"type", "text"}, {"text", whole ? block.text : ""}};
  return {{"type", "tool_use"},
          {"id", NameOf("toolu-", index)},
          {"name", block.call->name},
          {"input", whole ? Json::parse(block.text) : Json::object()}};
}

nlohmann::ordered_json MessagesAnswer::Message(bool whole) const {
  Json content = Json::array();
  if (whole) {
    for (size_t i = 0; i < blocks_.size(); ++i) content.push_back(Content(i, true));
  }
  Json message = {{"id", "msg-" + id_},
                  {"type", "message"},
                  {"role", "assistant"},
                  {"model", model_.name},
                  {"content", std::move(content)},
                  {"stop_reason", nullptr},
                  {"stop_sequence", nullptr}};
  if (whole) {
    message["stop_reason"] = end_ == TurnEnd::kLength   ? "max_tokens"
                             : called()                 ? "tool_use"
                             : stop_reason_.is_string() ? "stop_sequence"
                                                        : "end_turn";
    if (stop_reason_.is_string()) message["stop_sequence"] = stop_reason_;
  }
  message["usage"] = {{"input_tokens", prompt_tokens_}, {"output_tokens", tokens_}};
  return message;
}

nlohmann::ordered_json MessagesAnswer::Whole() { return Message(true); }

void MessagesAnswer::SayBegin() { Say("message_start", {{"message", Message(false)}}); }

void MessagesAnswer::SayBlock(size_t index) {
  Say("content_block_start", {{"index", index}, {"content_block", Content(index, false)}});
}

void MessagesAnswer::SayMore(size_t index, const std::string& text) {
  const Json delta = blocks_[index].call ? Json{{"type", "input_json_delta"}, {"partial_json", text}}
                                         : Json{{"type", "text_delta"}, {"text", text}};
  Say("content_block_delta", {{"index", index}, {"delta", delta}});
}

void MessagesAnswer::SayBlockEnd(size_t index) { Say("content_block_stop", {{"index", index}}); }

void MessagesAnswer::SayEnd() {
  const Json whole = Message(true);
  Say("message_delta",
      {{"delta", {{"stop_reason", whole["stop_reason"]}, {"stop_sequence", whole["stop_sequence"]}}},
       {"usage", {{"output_tokens", tokens_}}}});
  Say("message_stop", Json::object());
}

}  // namespace tidepool::workers
