#pragma once
// Rewards: functions from (question, response) to a number, by name.
//
// Three outcomes are kept apart. kOk: a grader looked at the response and returned a score, 0
// included. kData: the row or the response is malformed in a way that no retry mends (no answer in
// the row, a score that is not finite). kInfra: the grader could not do its work (time-out, lost
// connection); the functions here are pure and never return it, servers behind an endpoint may.
// Any thread.
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

#include "core/base/status.h"

namespace tidepool::tasks {

struct RewardInput {
  std::string prompt;
  std::string answer = {};                         // of the row; empty where it has none
  std::map<std::string, std::string> fields = {};  // of the row
  std::string text;                                // response, without its end token
  int64_t response_tokens = 0;                     // the end token included
  bool ended = false;  // by itself (end token or stop string), not cut at the limit
  int64_t max_new_tokens = 0;
};

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
};
const std::vector<RewardInfo>& ListRewards();

// `spec` is "name" or "name:argument". kNotFound with the nearest name; kInvalidArgument for a bad
// argument.
StatusOr<Reward> MakeReward(std::string_view spec);

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
