#pragma once
// An answer as its caller's form has it, from what is heard of a turn: whole, or as the events of a stream.
// One class a form. Not thread-safe; the model outlives it.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workers/serve/openai_request.h"
#include "workers/serve/served_model.h"
#include "workers/serve/turn.h"

namespace tidepool::workers {

struct AnswerEvent {
  std::string name;  // empty: it has none
  std::string data;
};

class AnswerWriter {
 public:
  // id: some letters and digits that name the answer.
  static std::unique_ptr<AnswerWriter> Make(const ServedModel& model, const AskedTurn& asked,
                                            const std::string& id, int64_t unix_s);
  virtual ~AnswerWriter() = default;

  // Of a stream: what it begins with, before anything else.
  virtual std::vector<AnswerEvent> Begin() = 0;
  // What a stream says of it; nothing where the answer is to be whole.  requires that it is no failure
  virtual std::vector<AnswerEvent> Add(const TurnDelta& delta) = 0;
  [[nodiscard]] virtual bool done() const = 0;  // all choices have ended
  // requires done(): what a stream ends with, or the answer.
  virtual std::vector<AnswerEvent> Last() = 0;
  virtual nlohmann::ordered_json Whole() = 0;
};

// Text that is no UTF-8 becomes U+FFFD.
inline std::string Dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tidepool::workers
