#pragma once
// What the trainer is given: rows of tokens with what was recorded when they were sampled. Plain data.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/turn_mark.h"

namespace tidepool::train {

// One sample: a prompt and the tokens that followed it.
struct Row {
  SampleId tid;
  GroupId gid;
  uint64_t digest = 0;            // of its payload, which says what the row is; 0: it has none
  std::vector<int32_t> prompt;    // at least one token
  std::vector<int32_t> response;  // the end token included; may be empty
  // [response] As the engine records them (engine::Delta): log p under softmax(logits / temperature),
  // nothing cut. With top-k, top-p or min-p, log_kept is the log of the mass that was kept, and
  // logprobs - log_kept is the log-probability under the distribution that sampled. The kept mass
  // cancels in every ratio that the losses use, so they compare logprobs with the trainer's own.
  // Empty for supervised rows.
  std::vector<float> logprobs;
  std::vector<float> log_kept;  // [response] or empty: nothing was cut
  // Experts of the rows that response tokens were drawn from, in their order (core/model/routing.h); may end
  // before the response does, and may be empty. The forward goes through them, and so does the backward.
  std::string routing;
  std::vector<Version> versions;   // [response] weights that sampled each token, or empty
  std::vector<uint8_t> loss_mask;  // [response] 1: train on this token; empty: all
  // Of the task. In jobs on pairs the row of a group with the larger one is the chosen answer. Else ignored
  // by supervised jobs.
  double reward = 0;
  std::vector<double> components;  // each reward function's own score, or empty
  bool truncated = false;          // cut at the length limit
  std::vector<TurnMark> turns;     // of an episode, ascending; else empty
  // Another rank of the group has the tokens and computes the row: here are their numbers, and prompt,
  // response, logprobs, log_kept and routing are empty.
  struct Lengths {
    int64_t prompt = 0, response = 0;
  };
  std::optional<Lengths> elsewhere;

  [[nodiscard]] int64_t prompt_tokens() const {
    return elsewhere ? elsewhere->prompt : static_cast<int64_t>(prompt.size());
  }
  [[nodiscard]] int64_t response_tokens() const {
    return elsewhere ? elsewhere->response : static_cast<int64_t>(response.size());
  }
};

// Rows of a group stand next to each other and have the same prompt.
struct Batch {
  StepNumber step;  // from 1
  Version version;  // of the weights that are trained
  // Ranks of a group list the same rows in the same order, so that statistics and counts are those of the
  // whole batch everywhere. Each row is one rank's and `elsewhere` for all others; groups are not split.
  std::vector<Row> rows;
};

}  // namespace tidepool::train
