#pragma once
// What a job will be given to learn from, as the model's tokenizer and chat template make it: the answer of
// `tidepool validate` and of `tidepool train --dry-run` about data. Reads files, and calls the rewards once
// each in a child of this process; starts nothing else.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/fields.h"
#include "core/base/status.h"
#include "workers/data/reward_trial.h"

namespace tidepool::workers {

struct LongestRow {
  int64_t tokens = 0;
  std::string place;  // "train.jsonl:12"
};
// Lines or rows that are left out: how many, and what is wrong with the first of them ("FILE:LINE: what").
struct LeftOut {
  int64_t count = 0;
  std::vector<std::string> first;
};
struct DataSummary {
  std::string source;              // "train.jsonl", "task products", "environment guess"
  int64_t rows = 0, held_out = 0;  // of an epoch; set aside. Less those left out, if all were looked at
  int64_t like_held_out = 0;       // left out of `rows`, because a held-out row has their prompt
  int64_t looked_at = 0;  // rows whose tokens were counted, held-out ones and those left out included
  bool looked_at_all = false;
  LongestRow longest_prompt, longest_row;
  int64_t prompt_tokens_max = 0;  // data.max_prompt_tokens
  LeftOut too_long;               // rows that do not fit a limit of the config or the model
  LeftOut unusable;               // other rows that no tokens could be made of
  LeftOut bad_lines;
  LeftOut ungraded;  // rows without the answer that a reward compares with: trained on in vain
  std::vector<TriedReward> rewards;  // of the first row
  std::string example_place, example_prompt, example_answer;
};
TP_FIELDS(LongestRow, tokens, place)
TP_FIELDS(LeftOut, count, first)
TP_FIELDS(DataSummary, source, rows, held_out, like_held_out, looked_at, looked_at_all, longest_prompt,
          longest_row, prompt_tokens_max, too_long, unusable, bad_lines, ungraded, rewards, example_place,
          example_prompt, example_answer)

// Of large data sets some rows are tokenised, those with the longest lines among them, so that it takes
// seconds. kInvalidArgument, kNotFound: the job cannot be trained on these data, or by its rewards.
StatusOr<DataSummary> SummarizeData(const JobConfig& config);

// For people, a line each.
std::vector<std::string> DataLines(const DataSummary& summary);

}  // namespace tidepool::workers
