// Reward servers that speak JSON over HTTP: the fields of RewardInput in a POST, a score in the answer.
// docs/adding_a_reward.md describes both for whoever writes a server.

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/json_text.h"
#include "workers/net/bounded_text.h"
#include "workers/side/http_connections.h"
#include "workers/side/reward_server.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

// Said about why, and read by people.
constexpr size_t kAnswerBytes = 64 << 10;  // of one sample

class HttpRewardServer final : public RewardServer {
 public:
  HttpRewardServer(std::string name, tasks::RewardEndpoint endpoint, bool batches)
      : name_(std::move(name)),
        path_(std::move(endpoint.path)),
        batches_(batches),
        connections_({endpoint.host, endpoint.port}, HostLookup(endpoint.host)) {}

  bool takes_batches() const override { return batches_; }

  StatusOr<Verdicts> Ask(RewardInputs inputs, SteadyTime deadline, const std::stop_token& stop) override {
    Json body = Json::array();
    for (const auto* input : inputs) body.push_back(JsonOf<Json>(*input));
    if (!batches_) body = Json(std::move(body[0]));
    TP_ASSIGN_OR_RETURN(const HttpAnswer answer,
                        connections_.Post({.target = path_,
                                           .body = body.dump(-1, ' ', false, Json::error_handler_t::replace),
                                           .answer_bytes_max = kAnswerBytes * inputs.size()},
                                          deadline, stop));
    if (answer.status != 200) {
      const std::string why = "HTTP " + std::to_string(answer.status) + " " + Bounded(answer.body);
      // Too many requests, bad gateway, unavailable, gateway time-out: it says "later".
      const bool later =
          answer.status == 429 || answer.status == 502 || answer.status == 503 || answer.status == 504;
      if (later) return Unavailable(why);
      return answer.status == 413 ? ResourceExhausted(why) : Internal(why);
    }
    if (const std::string problem = JsonTextProblem(answer.body); !problem.empty())
      return Internal("its answer " + problem + ": " + Bounded(answer.body));
    const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return Internal("its answer is no JSON (NaN is none): " + Bounded(answer.body));
    Verdicts verdicts;
    if (!batches_) {
      TP_ASSIGN_OR_RETURN(verdicts.emplace_back(), Read(json));
      return verdicts;
    }
    if (!json.is_array() || json.size() != inputs.size()) {
      return Internal("expected a list of " + std::to_string(inputs.size()) +
                      " answers, one a sample (reward.batch is above 1); found " + Bounded(answer.body));
    }
    for (const Json& one : json) {
      TP_ASSIGN_OR_RETURN(verdicts.emplace_back(), Read(one));
    }
    return verdicts;
  }

 private:
  // {"score": 0.5, "detail": "..."}, or {"data_error": "why"}.
  StatusOr<tasks::Verdict> Read(const Json& json) const {
    const auto text = [&](const char* key) {
      const auto at = json.find(key);
      return at != json.end() && at->is_string() ? Bounded(at->get<std::string>()) : std::string();
    };
    using Outcome = tasks::Verdict::Outcome;
    if (json.is_object() && json.contains("data_error"))
      return tasks::Verdict{Outcome::kData, 0, name_ + ": " + text("data_error")};
    if (!json.is_object() || !json.contains("score") || !json["score"].is_number()) {
      return Internal("expected {\"score\": a number} or {\"data_error\": why}; found " +
                      Bounded(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    return tasks::Verdict{Outcome::kOk, json["score"].get<double>(), text("detail")};
  }

  const std::string name_;
  const std::string path_;
  const bool batches_;
  HttpConnections connections_;
};

}  // namespace

std::unique_ptr<RewardServer> ConnectHttp(const std::string& name, const tasks::RewardEndpoint& endpoint,
                                          bool batches) {
  return std::make_unique<HttpRewardServer>(name, endpoint, batches);
}

}  // namespace tidepool::workers
