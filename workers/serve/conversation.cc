#include "workers/serve/conversation.h"

#include <map>
#include <utility>

namespace tidepool::workers {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

HttpResponse ErrorOf(AnswerForm form, const ApiError& error) {
  HttpResponse response = ToResponse(error);
  if (form != AnswerForm::kMessages) return response;
  Json json = ToJson(error);
  json["type"] = "error";
  response.body = Dumped(json);
  return response;
}

HttpResponse JsonResponse(const Json& json) { return {.type = "application/json", .body = Dumped(json)}; }

void Conversation::Hear(const TurnDelta& delta) {
  if (delta.end == TurnEnd::kFailed) return Fail(ToApiError(delta.why));
  if (stream_ && !begun_) {
    reply_->Begin({.type = "text/event-stream; charset=utf-8"});
    begun_ = true;
    Send(answer_->Begin());
  }
  Send(answer_->Add(delta));
  if (!answer_->done()) return;
  if (!stream_) return reply_->Answer(JsonResponse(answer_->Whole()));
  Send(answer_->Last());
  reply_->End();
}

void Conversation::Send(const std::vector<AnswerEvent>& events) {
  std::string text;
  for (const AnswerEvent& event : events) {
    if (!event.name.empty()) text += "event: " + event.name + "\n";
    text += "data: " + event.data + "\n\n";
  }
  if (!text.empty()) reply_->Write(std::move(text));
}

void Conversation::Fail(const ApiError& error) {
  if (!begun_) return reply_->Answer(ErrorOf(form_, error));
  const bool named = form_ == AnswerForm::kResponses || form_ == AnswerForm::kMessages;
  Send({{named ? "error" : "", ErrorOf(form_, error).body}});
  reply_->End();
}

std::optional<AnswerForm> FormOf(const std::string& path) {
  static const std::map<std::string, AnswerForm> kForms = {{"/v1/completions", AnswerForm::kCompletion},
                                                           {"/v1/chat/completions", AnswerForm::kChat},
                                                           {"/inference/v1/generate", AnswerForm::kTokens},
                                                           {"/v1/responses", AnswerForm::kResponses},
                                                           {"/v1/messages", AnswerForm::kMessages}};
  const auto at = kForms.find(path);
  return at == kForms.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace tidepool::workers
