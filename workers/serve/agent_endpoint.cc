#include "workers/serve/agent_endpoint.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/observe/exposition.h"
#include "core/storage/run_directory.h"
#include "workers/data/model_folder.h"
#include "workers/net/auth.h"
#include "workers/net/http_server.h"
#include "workers/serve/agent_episodes.h"
#include "workers/serve/conversation.h"
#include "workers/serve/request_fields.h"
#include "workers/serve/request_reading.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRewardMost = 1e9;
constexpr const char* kSessions = "/sessions/";

// "/sessions/ID/REST" -> ID, "/REST".
std::optional<std::pair<std::string, std::string>> SessionOf(const std::string& path) {
  const std::string prefix = kSessions;
  if (!path.starts_with(prefix)) return std::nullopt;
  const size_t slash = path.find('/', prefix.size());
  return std::pair(path.substr(prefix.size(), slash == std::string::npos ? slash : slash - prefix.size()),
                   slash == std::string::npos ? std::string() : path.substr(slash));
}

class AgentEndpoint final : public AgentSessions {
 public:
  explicit AgentEndpoint(std::unique_ptr<AgentEpisodes> episodes) : episodes_(std::move(episodes)) {}
  ~AgentEndpoint() override {
    server_.reset();
    // What is left leads nowhere; another one's, that came meanwhile, stays.
    if (file_.empty()) return;
    RealFileSystem files;
    if (const auto text = files.ReadFile(file_); text.ok() && *text == text_) (void)files.RemoveFile(file_);
  }

  Status Open(const AgentSessionsOptions& options) {
    TP_ASSIGN_OR_RETURN(const std::string key, RandomHex());
    HttpServerOptions http{.port = static_cast<uint16_t>(options.config.rollout.endpoint_port),
                           .key_digest = Sha256Hex(key),
                           .open_paths = {"/healthz"},
                           .connections_max = kConnectionsMost,
                           .body_bytes_max = kBodyBytesMost,
                           .bodies_bytes_max = kBodiesBytesMost};
    http.digest_of = [this](const std::string& path) -> StatusOr<std::string> {
      const auto session = SessionOf(path);
      return session ? episodes_->DigestOf(session->first) : StatusOr<std::string>("");
    };
    http.refusal = [](int status, const std::string& why) { return ToResponse({status, why}); };
    const std::string file = storage::RunPaths(options.run_dir).endpoint();
    http.where_key = "A session's was given with it; the run's is in " + file + ".";
    TP_ASSIGN_OR_RETURN(
        server_, HttpServer::StartLater(
                     http, [this](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
                       Answer(request, reply);
                     }));
    url_ = server_->Url();
    const Json text = {{"url", url_}, {"key", key}, {"model", episodes_->model().name}};
    text_ = text.dump() + "\n";
    TP_RETURN_IF_ERROR(WriteSecretFile(file, text_));
    file_ = file;
    return OkStatus();
  }

  void Play(AgentTurn turn) override { episodes_->Play(std::move(turn)); }
  void End(const SampleId& tid, int32_t att) override { episodes_->End(tid, att); }
  void Tick() override { episodes_->Tick(AgentEpisodes::Clock::now()); }

 private:
  void Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    const auto session = SessionOf(request.path);
    const std::string& path = session ? session->second : request.path;
    std::optional<AnswerForm> form;
    if (session) form = FormOf(path);
    const bool asks = form && *form != AnswerForm::kTokens;
    const bool rewards = session && path == "/reward", models = session && path == "/v1/models";
    const bool takes = !session && path == "/sessions";
    const bool reads = models || (!session && (path == "/healthz" || path == "/metrics"));
    if (!asks && !rewards && !takes && !reads)
      return reply->Answer(ToResponse(
          {404, request.path + ": there are POST /sessions, and of a session /v1/chat/completions, "
                               "/v1/completions, /v1/responses, /v1/messages, /v1/models and /reward"}));
    const std::string method = reads ? "GET" : "POST";
    if (request.method != method) {
      HttpResponse refused =
          ToResponse({405, request.path + ": " + method + " is expected, found " + request.method});
      refused.headers.emplace_back("Allow", method);
      return reply->Answer(std::move(refused));
    }
    if (takes) return episodes_->Take(url_, reply);
    if (rewards) return reply->Answer(Reward(session->first, request.body));
    if (path == "/healthz") return reply->Answer({.body = "ok\n"});
    if (path == "/metrics") return reply->Answer(Metrics());
    if (models) {
      episodes_->Touch(session->first);
      const ServedModel& model = episodes_->model();
      const Json card = {{"id", model.name},
                         {"object", "model"},
                         {"created", model.created_unix_s},
                         {"owned_by", "tidepool"},
                         {"max_model_len", model.max_tokens}};
      return reply->Answer(JsonResponse({{"object", "list"}, {"data", Json::array({card})}}));
    }
    if (form) Ask(*form, session->first, request, reply);
  }

  void Ask(AnswerForm form, const std::string& session, const HttpRequest& request,
           const std::shared_ptr<HttpReply>& reply) {
    auto read = ReadRequest(form, request.body, episodes_->model());
    if (const auto* error = std::get_if<ApiError>(&read)) return reply->Answer(ErrorOf(form, *error));
    episodes_->Ask(session, std::move(std::get<AskedTurn>(read)), reply);
  }

  HttpResponse Reward(const std::string& session, const std::string& body) {
    const auto json = ReadObject(body, "the body");
    if (!json.ok()) return ToResponse({400, json.status().message()});
    std::optional<ApiError> error;
    RequestFields fields(*json, &error);
    const auto reward = fields.Number("reward", -kRewardMost, kRewardMost);
    if (!reward) fields.Refuse("reward", "a number is expected; an episode without one is left to expire");
    const bool solved = fields.Flag("solved", reward.value_or(0) >= 1);
    fields.Finish();
    if (error) return ToResponse(*error);
    return episodes_->Reward(session, *reward, solved);
  }

  HttpResponse Metrics() const {
    const AgentCounts c = episodes_->Counts();
    observe::Exposition out;
    out.Gauge("tidepool_agents_sessions", static_cast<double>(c.open));
    out.Gauge("tidepool_agents_waiting", static_cast<double>(c.waiting));
    out.Counter("tidepool_agents_taken_total", static_cast<double>(c.taken));
    out.Counter("tidepool_agents_turns_total", static_cast<double>(c.turns));
    out.Counter("tidepool_agents_rewarded_total", static_cast<double>(c.rewarded));
    out.Counter("tidepool_agents_expired_total", static_cast<double>(c.expired));
    out.Counter("tidepool_agents_lost_total", static_cast<double>(c.lost));
    out.Counter("tidepool_agents_histories_refused_total", static_cast<double>(c.histories_refused));
    out.Counter("tidepool_agents_none_left_total", static_cast<double>(c.none_left));
    out.Process();
    return {.body = out.Text()};
  }

  const std::unique_ptr<AgentEpisodes> episodes_;
  std::string url_, file_, text_;       // text_: what `file_` has
  std::unique_ptr<HttpServer> server_;  // its threads call the above
};

}  // namespace

StatusOr<std::unique_ptr<AgentSessions>> OpenAgentEndpoint(const AgentSessionsOptions& options) {
  const JobConfig& c = options.config;
  const RolloutConfig& r = c.rollout;
  TP_ASSIGN_OR_RETURN(
      auto model, ServedModel::Load(options.model_dir, c.name, c.data.max_prompt_tokens + r.max_new_tokens));
  model->max_tokens = c.data.max_prompt_tokens + r.max_new_tokens;
  const int64_t turn = c.environment()->max_turn_tokens;
  model->trained = TrainedDrawing{.temperature = r.temperature,
                                  .top_p = r.top_p,
                                  .min_p = r.min_p,
                                  .top_k = r.top_k,
                                  .turn_tokens = turn > 0 ? turn : r.max_new_tokens};
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ends, EndTokens(options.model_dir));
  if (ends.empty())
    return FailedPrecondition("rollout.endpoint: the model of " + options.model_dir + " has no end token");
  std::unique_ptr<tasks::DataSource> data;
  if (!c.data.task.empty() || !c.data.path.empty()) {
    TP_ASSIGN_OR_RETURN(tasks::DataSource source, tasks::DataSource::Create(c.data, c.seed, c.kind()));
    data = std::make_unique<tasks::DataSource>(std::move(source));
  }
  auto endpoint = std::make_unique<AgentEndpoint>(
      std::make_unique<AgentEpisodes>(c, std::move(model), std::move(ends), std::move(data), options.say));
  TP_RETURN_IF_ERROR(endpoint->Open(options));
  return std::unique_ptr<AgentSessions>(std::move(endpoint));
}

}  // namespace tidepool::workers
