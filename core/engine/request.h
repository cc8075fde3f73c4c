#pragma once
// What goes into the generation engine and what comes out of it. Plain data, standard library only.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/own_weights.h"
#include "core/base/words.h"

namespace tidepool::engine {

// How a token is drawn. The distribution is softmax(logits / temperature), cut down in this order:
//   top_k  the k most probable tokens;
//   top_p  the fewest most probable of those whose share of their mass is >= top_p;
//   min_p  tokens with p >= min_p * (the largest p).
// Each cut is a threshold on the logit, so tokens of equal logit at the edge stay or go together.
struct SamplingParams {
  float temperature = 1.0F;                    // >= 0; 0 is greedy (the lowest id among equals)
  int64_t top_k = 0;                           // 0: off
  float top_p = 1.0F;                          // (0, 1]; 1: off
  float min_p = 0.0F;                          // [0, 1); 0: off
  std::vector<int32_t> stop_token_ids = {};    // beside the model's own end tokens
  std::vector<std::string> stop_strings = {};  // searched in the bytes of the generated tokens
};

// One chunk: a bounded run of new tokens of one attempt of a sample.
struct ChunkRequest {
  SampleId tid = {};  // names the noise: attempts of a sample share it
  int32_t attempt = 0;
  GroupId gid = {};                     // owner of the prompt's KV
  std::vector<int32_t> prompt = {};     // not empty
  std::vector<int32_t> generated = {};  // new tokens of earlier chunks
  int64_t max_new_tokens = 0;           // of this chunk, >= 1
  int64_t max_total_new = 0;            // of the sample, > generated.size()
  SamplingParams sampling = {};
  bool turn = false;   // of an episode: more may be asked for after its end, so its KV stays as after a chunk
  int64_t routed = 0;  // of `generated`, from the first on: tokens whose routing is recorded already
  // What Engine::AddAdapter gave. Samples and groups are named anew for each.
  int32_t adapter = kOwnWeights;
};

enum class FinishReason {
  kNone,        // goes on
  kChunk,       // the chunk's limit; the sample may go on
  kEos,         // an end token of the model
  kStopToken,   // one of stop_token_ids
  kStopString,  // its tokens stay in the record
  kLength,      // the sample's limit
  kCancelled,
  kError,  // see Delta::error
};
constexpr auto WordsOf(FinishReason) {
  return std::to_array<const char*>(
      {"none", "chunk", "eos", "stop_token", "stop_string", "length", "cancelled", "error"});
}
// Will no further chunk of this sample be asked for?
inline bool EndsSample(FinishReason r) {
  return r == FinishReason::kEos || r == FinishReason::kStopToken || r == FinishReason::kStopString ||
         r == FinishReason::kLength;
}

// What one step did to one request. ids, logprobs and log_kept have one length.
struct Delta {
  SampleId tid;
  int32_t attempt = 0;
  int32_t adapter = kOwnWeights;
  std::vector<int32_t> ids;  // new tokens, in order
  // Log-probability of each token under softmax(logits / temperature), nothing cut (temperature 1
  // where it is greedy): the bits that the trainer's model::TokenLogProbs has of equal logits.
  std::vector<float> logprobs;
  // Log of the mass that top_k, top_p and min_p kept; 0 without a cut. The log-probability under
  // the distribution that sampled the token is logprobs - log_kept.
  std::vector<float> log_kept;
  // With EngineOptions::record_routing, the experts of model/routing.h of the rows from the one that the
  // sample's token number `routed` was drawn from on, to the one that the last of ids was drawn from. Else
  // empty.
  std::string routing;
  Version version;  // of the weights that sampled ids
  FinishReason finish = FinishReason::kNone;
  std::string error;  // kError: what happened
};

// Of a step, or of several.
struct RowCounts {
  int64_t prompt_tokens = 0;      // tokens that placed requests came with (prompt + generated)
  int64_t prefix_hit_tokens = 0;  // of those, tokens whose KV was found or shared
  int64_t prefill_tokens = 0;     // rows computed to fill KV
  int64_t decode_tokens = 0;      // rows of requests that only feed their last token
  int64_t sampled_tokens = 0;
  void operator+=(const RowCounts& other) {
    prompt_tokens += other.prompt_tokens;
    prefix_hit_tokens += other.prefix_hit_tokens;
    prefill_tokens += other.prefill_tokens;
    decode_tokens += other.decode_tokens;
    sampled_tokens += other.sampled_tokens;
  }
};
struct EngineStats : RowCounts {            // of a step
  std::map<int32_t, RowCounts> by_adapter;  // the same of each whose requests it had
  double kv_usage = 0;          // share of KV blocks that running requests hold or were promised, 0..1
  int64_t running = 0;          // requests admitted, after the step
  int64_t waiting = 0;          // requests not admitted, after the step
  int64_t recorded_graphs = 0;  // this step
  int64_t refused_graphs = 0;   // this step: there was no memory for one, and later steps run without
  double step_s = 0;            // the whole step
  double forward_s = 0;         // of it, in the decoder
  double head_s = 0;            // of it, in the LM head
  double sample_s = 0;          // of it, log-probs and draws
};

struct StepOutput {
  std::vector<Delta> deltas;  // requests that got a token or ended, in order of admission
  EngineStats stats;
};

}  // namespace tidepool::engine
