#pragma once
// A config that is laid on top of another one by `extends`: the text of the file. Pure.

#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::config {

struct Extension {
  struct Value {
    std::string key;      // "train.mesh.tp", as an override has it
    std::string value;    // YAML, as an override has it
    std::string comment;  // why; may be empty
  };
  std::string extends;            // as the file is to name it
  std::vector<std::string> head;  // lines of comment at its top
  std::vector<Value> values;      // in this order, the last of a key counts
};

// kInvalidArgument: a value is no YAML, or a key is none that a file of its own can say (a part of a list).
StatusOr<std::string> ExtendingYaml(const Extension& extension);

}  // namespace tidepool::config
