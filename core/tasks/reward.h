#pragma once
// Rewards: functions from (question, response) to a number, by name.
//
// Three outcomes are kept apart. kOk: a grader looked at the response and returned a score, 0
// included. kData: the row or the response is malformed in a way that no retry mends (no answer in
// the row). kInfra: the grader could not do its work (time-out, lost connection, an exception, a score that
// is no finite number). A NaN says nothing of the row, so it is the grader's fault in C++ as it is a
// server's: of those a run bears a small share, and then ends, where rows at fault are left out for as long
// as any pass. Any thread.
//
//   TP_ASSIGN_OR_RETURN(auto reward, MakeReward("exact_answer"));
//   const Verdict verdict = reward({.prompt = q.prompt, .answer = q.answer, ...});
//
// A reward may take one argument after a colon: "format:^-?\\d+$", "contains:####", "gsm8k:flexible",
// "length_penalty:64".

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/config.h"
#include "core/base/status.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

// What a grader sees of a sample. Reward servers get these fields under these names (proto/reward.proto).
struct RewardInput {
  std::string prompt;       // text of the question: of a conversation its last user turn
  std::string answer = {};  // of the row; empty where it has none
  std::map<std::string, std::string> fields = {};  // of the row; what is no text there is JSON text
  std::string text;                                // response, without its end token
  int64_t response_tokens = 0;                     // the end token included
  bool ended = false;  // by itself (end token or stop string), not cut at the limit
  int64_t max_new_tokens = 0;
  // The conversation that the response answers: of the row, or the prompt as one user turn.
  std::vector<Message> messages = {};
  std::string rendered_prompt = {};  // what the model read: the chat template's text, special tokens included
  std::string file = {};             // that the row is from; empty: a generated question
  int64_t line = 0;                  // of the file, from 1
  int64_t row = 0;                   // of the file, or of the task's questions; from 0
  bool held_out = false;             // a question of an evaluation, never trained on
  std::string sample = {};           // "ordinal.issue.sample", its name in journal and logs
};
TP_FIELDS(RewardInput, sample, prompt, messages, rendered_prompt, answer, fields, text, response_tokens,
          max_new_tokens, ended, held_out, row, line, file)

// "sample 3.0.1 (rows.jsonl:12)", "sample 3.0.1 (question 3)": for messages.
std::string NameOf(const RewardInput& input);

struct Verdict {
  enum class Outcome { kOk, kData, kInfra };
  Outcome outcome = Outcome::kOk;
  double score = 0;    // with kOk alone; finite
  std::string detail;  // why, for people; may be empty
};

using Reward = std::function<Verdict(const RewardInput&)>;

struct RewardInfo {
  std::string name;
  std::string argument;  // what may stand after the colon; empty: nothing
  std::string doc;
  std::string file;  // that defines it
  // Keys of reward.functions that it reads and others do not. Some: it grades by the model of its `path`, in
  // workers of the program that computes (workers/side/model_reward.h), and MakeReward makes none.
  std::vector<std::string> keys;
  [[nodiscard]] bool by_model() const { return !keys.empty(); }
};
const std::vector<RewardInfo>& ListRewards();
// Of a `spec`; null: no reward is named so.
const RewardInfo* FindReward(std::string_view spec);
// Whether this function reads the key of its own ("path", "score_min"); those that all read are of no reward.
bool Reads(const RewardFunction& function, std::string_view key);

// "reward NAME (FILE)" of a `spec` that is known, for messages.
std::string RewardLabel(std::string_view spec);
// A call of it that may take `timeout_s`, the key of the reward; on what is for who calls.
PluginCall RewardCall(std::string_view spec, double timeout_s);
// `spec` is "name" or "name:argument". kNotFound with the nearest name; kInvalidArgument for a bad
// argument. What it returns is a RunningReward.
StatusOr<Reward> MakeReward(std::string_view spec);
// The row has no answer, and therefore `reward` can grade no response to it. Nothing is declared for it: a
// reward says so by its verdict on an empty response, kData without an answer and not with one. Of a reward
// that reads only some answers (JSON, say) this may be false all the same.
bool LacksAnswer(const Reward& reward, RewardInput row);
// A reward each call of which is a RunningCall (core/base/running_call.h). Exceptions, and scores that are
// not finite, are kInfra in words that begin with `name`.
Reward RunningReward(const std::string& name, Reward reward);

// How `exact_answer` compares, from fields["answer_rule"]:
//   last_number  the response ended by itself and its last number equals the answer
//   text         the response ended by itself and equals the answer, both trimmed
//   countdown    the response ended by itself and its expression (in an answer tag, or all of it)
//                uses fields["numbers"] and makes fields["target"]
//   sorting      the response ended by itself and is the JSON list of the answer
//                (in an answer tag, or all of it)
//   gsm8k        "#### number" at the end
//   answer_tag   the text of the last answer tag equals the answer
// Without that field: last_number if the answer is a number, else text. Unknown rule: kData.
Verdict ExactAnswer(const RewardInput& input);

}  // namespace tidepool::tasks
