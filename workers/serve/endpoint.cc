#include "workers/serve/endpoint.h"

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "core/observe/exposition.h"
#include "workers/build_info.h"
#include "workers/serve/answer_writer.h"
#include "workers/serve/api_error.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

HttpResponse ErrorOf(AnswerForm form, const ApiError& error) {
  HttpResponse response = ToResponse(error);
  if (form != AnswerForm::kMessages) return response;
  Json json = ToJson(error);
  json["type"] = "error";
  response.body = Dumped(json);
  return response;
}

HttpResponse JsonResponse(const Json& json) { return {.type = "application/json", .body = Dumped(json)}; }

// One request, from its turn's begin to its last byte. What it hears comes from one thread.
class Conversation {
 public:
  Conversation(std::unique_ptr<AnswerWriter> answer, AnswerForm form, bool stream,
               std::shared_ptr<HttpReply> reply)
      : answer_(std::move(answer)), form_(form), stream_(stream), reply_(std::move(reply)) {}

  void Hear(const TurnDelta& delta) {
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

 private:
  void Send(const std::vector<AnswerEvent>& events) {
    std::string text;
    for (const AnswerEvent& event : events) {
      if (!event.name.empty()) text += "event: " + event.name + "\n";
      text += "data: " + event.data + "\n\n";
    }
    if (!text.empty()) reply_->Write(std::move(text));
  }
  // A stream that has begun has its status sent: the error is its last event.
  void Fail(const ApiError& error) {
    if (!begun_) return reply_->Answer(ErrorOf(form_, error));
    const bool named = form_ == AnswerForm::kResponses || form_ == AnswerForm::kMessages;
    Send({{named ? "error" : "", ErrorOf(form_, error).body}});
    reply_->End();
  }

  const std::unique_ptr<AnswerWriter> answer_;
  const AnswerForm form_;
  const bool stream_;
  const std::shared_ptr<HttpReply> reply_;
  bool begun_ = false;
};

std::optional<AnswerForm> FormOf(const std::string& path) {
  static const std::map<std::string, AnswerForm> kForms = {{"/v1/completions", AnswerForm::kCompletion},
                                                           {"/v1/chat/completions", AnswerForm::kChat},
                                                           {"/inference/v1/generate", AnswerForm::kTokens},
                                                           {"/v1/responses", AnswerForm::kResponses},
                                                           {"/v1/messages", AnswerForm::kMessages}};
  const auto at = kForms.find(path);
  return at == kForms.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace

Endpoint::Endpoint(const ServedModel& model, Generator& generator)
    : model_(model), generator_(generator), prefix_([] {
        const auto random = RandomHex();
        return random.ok() ? random->substr(0, 16) : std::string("answer");
      }()) {}

void Endpoint::Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const std::string& path = request.path;
  const std::optional<AnswerForm> form = FormOf(path);
  const bool one = path == "/v1/models/" + model_.name;
  const bool known = form || one || path == "/healthz" || path == "/metrics" || path == "/v1/models";
  if (!known)
    return reply->Answer(
        ToResponse({404, path + ": there are /v1/models, /v1/completions, /v1/chat/completions, "
                                "/v1/responses, /v1/messages, /inference/v1/generate, "
                                "/metrics and /healthz"}));
  const std::string method = form ? "POST" : "GET";
  if (request.method != method) {
    HttpResponse refused = ToResponse({405, path + ": " + method + " is expected, found " + request.method});
    refused.headers.emplace_back("Allow", method);
    return reply->Answer(std::move(refused));
  }
  if (form) return Ask(*form, request, reply);
  if (path == "/healthz") return reply->Answer(Health());
  if (path == "/metrics") return reply->Answer(Metrics());
  reply->Answer(JsonResponse(one ? Card() : Json{{"object", "list"}, {"data", Json::array({Card()})}}));
}

void Endpoint::Ask(AnswerForm form, const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  auto read = ReadRequest(form, request.body, model_);
  if (const auto* error = std::get_if<ApiError>(&read)) return reply->Answer(ErrorOf(form, *error));
  auto& asked = std::get<AskedTurn>(read);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::string id = prefix_ + "-" + std::to_string(++answers_);
  auto conversation = std::make_shared<Conversation>(AnswerWriter::Make(model_, asked, id, now.count()), form,
                                                     asked.style.stream, reply);
  const auto turn = generator_.Begin(std::move(asked.turn),
                                     [conversation](const TurnDelta& delta) { conversation->Hear(delta); });
  if (!turn.ok()) return reply->Answer(ErrorOf(form, ToApiError(turn.status())));
  reply->OnGone([&generator = generator_, number = *turn] { generator.Cancel(number); });
}

Json Endpoint::Card() const {
  return {{"id", model_.name},
          {"object", "model"},
          {"created", model_.created_unix_s},
          {"owned_by", "tidepool"},
          {"max_model_len", model_.max_tokens}};
}

HttpResponse Endpoint::Health() const {
  const StatusOr<bool> serves = generator_.Serves();
  if (!serves.ok()) return {.status = 503, .body = "the model is not served any more\n"};
  if (!*serves) return {.status = 503, .body = "the model is being loaded\n"};
  return {.body = "ok\n"};
}

HttpResponse Endpoint::Metrics() const {
  const GeneratorCounts n = generator_.Counts();
  observe::Exposition out;
  out.Gauge("tidepool_build_info", 1, {{"version", BuildVersion()}, {"commit", BuildCommit()}});
  out.Gauge("tidepool_serve_running", static_cast<double>(n.running));
  out.Gauge("tidepool_serve_waiting", static_cast<double>(n.waiting));
  out.Gauge("tidepool_serve_kv_usage", n.kv_usage);
  const auto count = [](int64_t of) { return static_cast<double>(of); };
  out.Counter("tidepool_serve_prompt_tokens_total", count(n.prompt_tokens));
  out.Counter("tidepool_serve_answer_tokens_total", count(n.answer_tokens));
  out.Counter("tidepool_serve_requests_total", count(n.turns));
  out.Counter("tidepool_serve_requests_finished_total", count(n.finished));
  out.Counter("tidepool_serve_requests_cancelled_total", count(n.cancelled));
  out.Counter("tidepool_serve_requests_failed_total", count(n.failed));
  out.Counter("tidepool_serve_requests_refused_total", count(n.refused));
  out.Process();
  return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = out.Text()};
}

}  // namespace tidepool::workers
