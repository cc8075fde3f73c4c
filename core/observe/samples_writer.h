#pragma once
// samples/step_N.jsonl: what was generated and how it was judged, one sample a line. The files hold
// prompts and responses, so they are readable by their owner alone (0600).

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::observe {

struct SampleRow {
  SampleId tid;
  std::string prompt;
  std::string text;                    // response
  std::string answer = {};             // of the row; may be empty
  std::vector<int32_t> ids = {};       // response tokens
  std::vector<float> logprobs = {};    // [ids], nats, under the weights that sampled the token
  std::vector<int64_t> versions = {};  // [ids], number of the version that sampled the token
  // [ids], 0 where an environment said the token (its log-prob is null in the file); empty: all sampled
  std::vector<uint8_t> loss_mask = {};
  double reward = 0;                           // weighted sum
  std::map<std::string, double> rewards = {};  // by name, unweighted
  bool ended = false;                          // by itself
  friend bool operator==(const SampleRow&, const SampleRow&) = default;
};

TP_FIELDS(SampleRow, tid, prompt, text, reward, rewards, ended, answer, ids, logprobs, versions, loss_mask)

// As a line of the file has it.
nlohmann::ordered_json ToJson(const SampleRow& row);
// Writes run_dir/samples/step_<step>.jsonl whole; a file of that step is replaced.
Status WriteSamples(const std::string& run_dir, int64_t step, const std::vector<SampleRow>& rows);

// kNotFound; kDataLoss names the line. Lines that lack a field keep its default.
StatusOr<std::vector<SampleRow>> ReadSamples(const std::string& run_dir, int64_t step);

// Steps that have a samples file, ascending.
std::vector<int64_t> SampleSteps(const std::string& run_dir);

}  // namespace tidepool::observe
