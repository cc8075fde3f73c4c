#pragma once
// The endpoint of a model, or of several adapters on one: which path is what, over HTTP. A request is read
// (openai_request.h), becomes a turn of whoever generates (generator.h), and its answer is written
// (answer_writer.h) as it comes: whole, or as server-sent events. A caller that hangs up has its turn
// cancelled.
//
//   GET  /healthz               without the key: 200 where the model serves, else 503 and why
//   GET  /metrics               for Prometheus
//   GET  /v1/models, /v1/models/NAME
//   POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, /inference/v1/generate

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "workers/net/http_server.h"
#include "workers/serve/generator.h"
#include "workers/serve/openai_request.h"
#include "workers/serve/served_model.h"

namespace tidepool::workers {

class Endpoint {
 public:
  // One model or more, of different names. A request that names none is the first one's. `generator`, which
  // outlives the endpoint, has them all.
  Endpoint(std::vector<ServedModel> served, Generator& generator);
  // Any thread. For HttpServer::StartLater.
  void Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  void Ask(AnswerForm form, const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  [[nodiscard]] HttpResponse Health() const;
  [[nodiscard]] HttpResponse Metrics() const;
  // That a request names; null: of several none has the name.
  [[nodiscard]] const ServedModel* Named(const std::string& body) const;

  const std::vector<ServedModel> served_;
  Generator& generator_;
  const std::string prefix_;  // of the names of answers: of this process
  std::atomic<int64_t> answers_ = 0;
};

}  // namespace tidepool::workers
