#pragma once
// What groups teach where advantages are relative to the group: nothing if the rewards of a group are all
// equal. Counted over the groups that a step trains and those that algorithm.filter left out since the step
// before, so that a filter does not hide what it does.

#include <cstdint>

namespace tidepool::scheduler {

struct GroupSignal {
  int64_t groups = 0;     // with two or more graded samples
  int64_t equal = 0;      // of these: all rewards are equal
  int64_t all_right = 0;  // of the equal ones: the first reward of every sample is 1
  int64_t all_wrong = 0;  // of the equal ones: the first reward of every sample is 0
  bool verdicts = true;   // the first reward of every sample of `groups` is 0 or 1
};

}  // namespace tidepool::scheduler
