#pragma once
// Where the ranks of one training group find each other: values by name that all of them see. A rank waits
// for those of the others; nobody waits without a deadline. Thread-safe.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::comm {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // All fail with kNotFound once the group is over, and with kUnavailable where nobody answers.
  // kResourceExhausted: it is more than a rendezvous has room for.
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // Their values, in order, as soon as all are there. kDeadlineExceeded: after `patience` some are not.
  virtual StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                                 std::chrono::milliseconds patience) = 0;
  // To the number under this name, 0 at first; the sum. kInvalidArgument: there is something else.
  virtual StatusOr<int64_t> Add(const std::string& key, int64_t n) = 0;
};

}  // namespace tidepool::comm
