#pragma once
// What the trainer is given: rows of tokens with what was recorded when they were sampled. Plain data.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/turn_mark.h"

namespace tidepool::train {

// One sample: a prompt and the tokens that followed it.
struct Row {
  SampleId tid;
  GroupId gid;
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
};

// Rows of a group stand next to each other and have the same prompt.
struct Batch {
  StepNumber step;  // from 1
  Version version;  // of the weights that are trained
  std::vector<Row> rows;
  // [rows] 1: computed by this rank. Empty: all. Ranks of a group hold the same rows, so that statistics
  // and counts are those of the whole batch everywhere, and share the work; groups are not split.
  std::vector<uint8_t> mine;
};

}  // namespace tidepool::train
