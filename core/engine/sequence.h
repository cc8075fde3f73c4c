#pragma once
// A request inside the engine: its tokens, and where it stands while it is placed in the KV cache.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/request.h"
#include "core/engine/stop_strings.h"

namespace tidepool::engine {

struct Sequence {
  // What was asked for.
  SampleId tid;
  int32_t attempt = 0;
  int32_t adapter = kOwnWeights;
  GroupId gid;
  uint64_t uid = 0;  // SampleUid(tid)
  SamplingParams sampling;
  bool turn = false;            // its KV stays also where it ends by itself
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  int64_t chunk_end = 0;   // tokens.size() at which the chunk ends
  int64_t sample_end = 0;  // tokens.size() at which the sample ends
  int64_t routed_end = 0;  // rows [0, routed_end) need not be recorded (any more) for Delta::routing
  StopStrings stop;

  // Placed (in `running`). The KV of tokens [0, computed) stands in `blocks`; `promised` further blocks
  // take it to chunk_end - 1 tokens (the last sampled token is not fed in this chunk).
  std::vector<int32_t> blocks;
  int64_t computed = 0;
  int64_t promised = 0;
  int64_t prompt_blocks_shared = 0;  // full blocks of the prompt that stand in the prefix tree
  bool stale =
      false;  // some of its KV was made by weights of before: its own alone, never in the prefix tree
  // Waits for `leader`, which computes tokens [0, follow_tokens) that this one shares; holds no block
  // meanwhile, and was promised what it needs beyond them.
  Sequence* leader = nullptr;
  int64_t follow_tokens = 0;

  // Of the current step.
  int64_t rows = 0;  // rows in the batch, for tokens [computed, computed + rows)
  int64_t first_row = 0;
  int64_t prompt_row = -1;              // row of the prompt's last token, if it was computed now
  int64_t sample_row = -1;              // row whose hidden state gives the next token
  std::vector<std::byte> sample_state;  // that hidden state itself, if it was computed earlier
  bool tail_lent = false;               // the prompt's last, partly filled block went into the prefix tree

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  [[nodiscard]] int64_t missing() const { return size() - computed; }  // tokens without KV
  [[nodiscard]] int64_t generated() const { return size() - prompt_tokens; }
};

}  // namespace tidepool::engine
