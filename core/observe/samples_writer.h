#pragma once
// samples/step_N.jsonl: what was generated and how it was judged, one sample a line. The files hold
// prompts and responses, so they are readable by their owner alone (0600).

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::observe {

// What one said of a conversation. role: system, user, assistant, tool; of an episode's turns: policy,
// environment.
struct SampleMessage {
  std::string role;
  std::string content;
  friend bool operator==(const SampleMessage&, const SampleMessage&) = default;
};
TP_FIELDS(SampleMessage, role, content)

struct SampleRow {
  SampleId tid;
  std::string prompt;                  // of a conversation its last user turn
  std::string text;                    // response
  std::string answer = {};             // of the row; may be empty
  std::vector<int32_t> ids = {};       // response tokens
  std::vector<float> logprobs = {};    // [ids], nats, under the weights that sampled the token
  std::vector<int64_t> versions = {};  // [ids], number of the version that sampled the token
  // [ids], 0 where an environment said the token (its log-prob is null in the file); empty: all sampled
  std::vector<uint8_t> loss_mask = {};
  double reward = 0;                           // weighted sum
  std::map<std::string, double> rewards = {};  // by name, unweighted
  // What a reward said besides, by name. Of a sample that was graded before its controller ended: empty.
  std::map<std::string, std::string> details = {};
  bool ended = false;  // by itself
  // What a grader sees, too (core/tasks/reward.h RewardInput).
  std::vector<SampleMessage> messages = {};
  std::string rendered_prompt = {};
  std::map<std::string, std::string> fields = {};
  std::string file = {};
  int64_t line = 0, row = 0;
  std::vector<SampleMessage> turns = {};  // of an episode, the environment's first words included; else empty
  friend bool operator==(const SampleRow&, const SampleRow&) = default;
};

TP_FIELDS(SampleRow, tid, prompt, messages, text, turns, reward, rewards, details, ended, answer, fields, row,
          line, file, rendered_prompt, ids, logprobs, versions, loss_mask)

// Of the answer and the fields of a row together, in samples/: rows may hold a file each, and the row is
// named by file and line.
inline constexpr int64_t kSampleFieldBytes = 4 << 10;

// Which samples of a batch are written, ascending: `most` of them (-1: all), two of each group as far as
// there are groups enough, from groups all over the batch. groups: that of each sample, those of a group in a
// row.
std::vector<size_t> ChooseSamples(std::span<const int64_t> groups, int64_t most);

// As a line of the file has it.
nlohmann::ordered_json ToJson(const SampleRow& row);
// Writes run_dir/samples/step_<step>.jsonl whole; a file of that step is replaced.
Status WriteSamples(const std::string& run_dir, int64_t step, const std::vector<SampleRow>& rows);

// Calls `take` with the samples of a step, which it may hold by itself: a file of all samples of a large
// batch is longer than anyone wants to keep. false of it ends the walk. kNotFound; kDataLoss names the line.
// Lines that lack a field keep its default.
Status ForEachSample(const std::string& run_dir, int64_t step, const std::function<bool(SampleRow)>& take);
// The first of them, at most `most`.
StatusOr<std::vector<SampleRow>> ReadSamples(const std::string& run_dir, int64_t step,
                                             size_t most = SIZE_MAX);

// Steps that have a samples file, ascending.
std::vector<int64_t> SampleSteps(const std::string& run_dir);

}  // namespace tidepool::observe
