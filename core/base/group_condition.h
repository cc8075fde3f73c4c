#pragma once
// What a group of samples has to fulfil to be trained on, as a config writes it (algorithm.keep_groups).
// Pure.

#include <string>

#include "core/base/status.h"

namespace tidepool {

// A value of a group against a bound. What can be named: `reward`, the mean of the samples' rewards;
// `reward_std`, their population standard deviation; `response_tokens`, the mean length of the responses; or
// a reward function, the mean of what it gave.
struct GroupCondition {
  std::string value;
  bool at_least = true;  // false: at most
  double bound = 0;
};

// "NAME >= NUMBER" or "NAME <= NUMBER". kInvalidArgument says what is wrong with it.
StatusOr<GroupCondition> ParseGroupCondition(const std::string& text);

}  // namespace tidepool
