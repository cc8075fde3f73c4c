#pragma once
// A request that is being answered: what is heard of its turn becomes its answer over HTTP, whole or as
// server-sent events.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "workers/net/http_server.h"
#include "workers/serve/answer_writer.h"
#include "workers/serve/api_error.h"

namespace tidepool::workers {

// The form of what is asked at a path ("/v1/chat/completions"); nullopt: nothing is.
std::optional<AnswerForm> FormOf(const std::string& path);
// An error as the form's clients read it.
HttpResponse ErrorOf(AnswerForm form, const ApiError& error);
HttpResponse JsonResponse(const nlohmann::ordered_json& json);

// One request, from its turn's begin to its last byte. What it hears comes from one thread at a time.
class Conversation {
 public:
  Conversation(std::unique_ptr<AnswerWriter> answer, AnswerForm form, bool stream,
               std::shared_ptr<HttpReply> reply)
      : answer_(std::move(answer)), form_(form), stream_(stream), reply_(std::move(reply)) {}

  void Hear(const TurnDelta& delta);

 private:
  void Send(const std::vector<AnswerEvent>& events);
  // A stream that has begun has its status sent: the error is its last event.
  void Fail(const ApiError& error);

  const std::unique_ptr<AnswerWriter> answer_;
  const AnswerForm form_;
  const bool stream_;
  const std::shared_ptr<HttpReply> reply_;
  bool begun_ = false;
};

}  // namespace tidepool::workers
