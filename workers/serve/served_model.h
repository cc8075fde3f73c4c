#pragma once
// The text side of a model that is served: what turns requests into tokens and tokens into answers.
// Immutable; any thread.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/own_weights.h"
#include "core/base/status.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "core/text/tool_calls.h"

namespace tidepool::workers {

// How a run draws the tokens that it trains on: its requests can say nothing else.
struct TrainedDrawing {
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  int64_t turn_tokens = 0;  // the most that the model says in a turn
};

struct ServedModel {
  std::string name;               // that requests say
  int32_t adapter = kOwnWeights;  // that it is, Turn::adapter
  // Shared by a model and its adapters, whose text side is the model's.
  std::shared_ptr<const text::Tokenizer> tokenizer;         // not null
  std::shared_ptr<const text::ChatTemplate> template_text;  // null: the model has none
  text::ToolFormat tools = text::ToolFormat::kNone;         // that its template shows
  int64_t vocab_size = 0;
  int64_t max_tokens = 0;  // prompt and answer together: positions, and room in the KV cache
  int64_t created_unix_s = 0;
  std::optional<TrainedDrawing> trained;  // of a run's own endpoint

  // Reads the folder's tokenizer and template.  kv_tokens: what the KV cache holds
  static StatusOr<std::unique_ptr<ServedModel>> Load(const std::string& dir, std::string name,
                                                     int64_t kv_tokens);
};

}  // namespace tidepool::workers
