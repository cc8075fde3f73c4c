#pragma once
// A row as the ranks get it that do not compute it.

#include "core/train/batch.h"

namespace tidepool::train {

inline Row Elsewhere(Row row) {
  row.elsewhere = {.prompt = row.prompt_tokens(), .response = row.response_tokens()};
  row.prompt.clear();
  row.response.clear();
  row.logprobs.clear();
  row.log_kept.clear();
  row.routing.clear();
  return row;
}

}  // namespace tidepool::train
