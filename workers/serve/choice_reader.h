#pragma once
// What is heard of one choice of a turn, as what an answer says: text, calls, tokens, and how it ended. Not
// thread-safe; the model outlives it.

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/text/tool_calls.h"
#include "workers/serve/answer_text.h"
#include "workers/serve/openai_request.h"
#include "workers/serve/served_model.h"
#include "workers/serve/turn.h"

namespace tidepool::workers {

struct ChoicePart {
  std::vector<text::ToolPiece> pieces = {};  // in their order; texts that follow each other are one text
  TokenRecord tokens = {};
  TurnEnd end = TurnEnd::kNone;
  // At the end: the stop string or the id of the stop token that was met; null: none was.
  nlohmann::ordered_json stop_reason = nullptr;
};

class ChoiceReader {
 public:
  ChoiceReader(const ServedModel& model, const AskedTurn& asked)
      : text_(*model.tokenizer, asked.turn.sampling.stop),
        tools_(asked.style.tools.empty() ? text::ToolFormat::kNone : model.tools, asked.style.tools),
        stop_token_ids_(asked.turn.sampling.stop_token_ids) {}

  ChoicePart Read(const TurnDelta& delta) {
    const std::vector<int32_t>& ids = delta.tokens.ids;
    ChoicePart part{.tokens = delta.tokens, .end = delta.end};
    std::string text = text_.Push(ids);
    if (delta.end != TurnEnd::kNone) text += text_.Finish();
    part.pieces = tools_.Push(text);
    if (delta.end == TurnEnd::kNone) return part;
    for (text::ToolPiece& piece : tools_.Finish()) part.pieces.push_back(std::move(piece));
    if (!text_.stopped_by().empty()) {
      part.stop_reason = text_.stopped_by();
    } else if (delta.end == TurnEnd::kStop && !ids.empty() &&
               std::ranges::find(stop_token_ids_, ids.back()) != stop_token_ids_.end()) {
      part.stop_reason = ids.back();
    }
    return part;
  }

 private:
  AnswerText text_;
  text::ToolText tools_;
  const std::vector<int32_t> stop_token_ids_;
};

}  // namespace tidepool::workers
