#pragma once
// Rows without the `answer` that a reward of the job compares with: no response to them can be graded, so
// each of their samples is generated in vain and dropped as data_invalid. Asked before anything starts.
// Any thread.

#include <cstdint>
#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {

struct RowsWithoutAnswer {
  int64_t count = 0, looked_at = 0;  // rows, held-out ones included; of very large data some, evenly spread
  bool none_to_train_on = false;  // all training rows are without (all held-out ones, if there are no others)
  std::string first;              // "train.jsonl:12"
  std::string reward;             // that lacks it there
};
// Nothing of jobs other than rl and of those without rows of data. Rewards behind an endpoint and models are
// not asked. kNotFound, kInvalidArgument: a reward cannot be made.
StatusOr<RowsWithoutAnswer> CountRowsWithoutAnswer(const JobConfig& config, const RowSource& rows);
// kInvalidArgument: there is no row to train on that could be graded.
Status CheckAnswers(const RowsWithoutAnswer& without);
// For people; requires without.count > 0.
std::string WarningOf(const RowsWithoutAnswer& without);

}  // namespace tidepool::workers
