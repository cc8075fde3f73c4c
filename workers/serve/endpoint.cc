#include "workers/serve/endpoint.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "core/base/json_text.h"
#include "core/base/names.h"
#include "core/observe/exposition.h"
#include "workers/build_info.h"
#include "workers/serve/answer_writer.h"
#include "workers/serve/api_error.h"
#include "workers/serve/conversation.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

Json Card(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created_unix_s},
          {"owned_by", "tidepool"},
          {"max_model_len", model.max_tokens}};
}

}  // namespace

Endpoint::Endpoint(std::vector<ServedModel> served, Generator& generator)
    : served_(std::move(served)), generator_(generator), prefix_([] {
        const auto random = RandomHex();
        return random.ok() ? random->substr(0, 16) : std::string("answer");
      }()) {}

void Endpoint::Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const std::string& path = request.path;
  const std::optional<AnswerForm> form = FormOf(path);
  const auto one = std::ranges::find_if(
      served_, [&](const ServedModel& model) { return path == "/v1/models/" + model.name; });
  const bool known =
      form || one != served_.end() || path == "/healthz" || path == "/metrics" || path == "/v1/models";
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
  if (one != served_.end()) return reply->Answer(JsonResponse(Card(*one)));
  Json list = Json::array();
  for (const ServedModel& model : served_) list.push_back(Card(model));
  reply->Answer(JsonResponse(Json{{"object", "list"}, {"data", std::move(list)}}));
}

const ServedModel* Endpoint::Named(const std::string& body) const {
  if (served_.size() == 1) return &served_.front();
  const auto json = ParseJsonObject<nlohmann::json>(body, "");
  if (!json.ok()) return &served_.front();  // whoever reads it says what is wrong
  const auto name = json->find("model");
  if (name == json->end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    return &served_.front();
  for (const ServedModel& model : served_)
    if (model.name == name->get_ref<const std::string&>()) return &model;
  return nullptr;
}

void Endpoint::Ask(AnswerForm form, const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const ServedModel* const served = Named(request.body);
  if (served == nullptr)
    return reply->Answer(ErrorOf(
        form,
        {404, "this server has " + Listed(served_, [](const ServedModel& m) { return m.name; }) + " alone",
         "model"}));
  const ServedModel& model = *served;
  auto read = ReadRequest(form, request.body, model);
  if (const auto* error = std::get_if<ApiError>(&read)) return reply->Answer(ErrorOf(form, *error));
  auto& asked = std::get<AskedTurn>(read);
  asked.turn.adapter = model.adapter;
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::string id = prefix_ + "-" + std::to_string(++answers_);
  auto conversation = std::make_shared<Conversation>(AnswerWriter::Make(model, asked, id, now.count()), form,
                                                     asked.style.stream, reply);
  const auto turn = generator_.Begin(std::move(asked.turn),
                                     [conversation](const TurnDelta& delta) { conversation->Hear(delta); });
  if (!turn.ok()) return reply->Answer(ErrorOf(form, ToApiError(turn.status())));
  reply->OnGone([&generator = generator_, number = *turn] { generator.Cancel(number); });
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
