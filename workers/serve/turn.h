#pragma once
// What a request asks of whoever generates, and what it hears of it: tokens alone, and nothing of JSON or
// HTTP. Plain data.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/own_weights.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct Turn {
  std::vector<std::vector<int32_t>> prompts;  // none is empty
  int64_t samples = 1;                        // of each prompt
  int64_t max_new_tokens = 1;                 // of each sample
  down::ChunkSampling sampling;               // given
  int32_t adapter = kOwnWeights;              // of the session (workers/cli/inference.h)
  // Names the noise: with the same one, sample i of a prompt has the same tokens whatever runs beside it.
  std::optional<int64_t> seed;
  // Sample i of prompt p is choice p * samples + i.
  [[nodiscard]] int64_t choices() const { return static_cast<int64_t>(prompts.size()) * samples; }
};

enum class TurnEnd {
  kNone,    // it goes on
  kEnd,     // an end token of the model
  kStop,    // a stop string or a stop token
  kLength,  // max_new_tokens
  kFailed,  // see TurnDelta::why
};
struct TurnDelta {
  int64_t choice = 0;
  TokenRecord tokens = {};  // new ones
  TurnEnd end = TurnEnd::kNone;
  Status why = {};
};
// Hears of each choice until its end; one that failed ends the others, too, and nothing more is said. On the
// thread of who generates: be quick.
using TurnSink = std::function<void(const TurnDelta&)>;

}  // namespace tidepool::workers
