#pragma once
// A row of a batch that cannot be trained on: bytes that are no sample, or a content that fails its checks.
// Who trains says which and why; the scheduler drops its group and trains the others.

#include <cstddef>
#include <string>

#include "core/base/fields.h"
#include "core/base/ids.h"

namespace tidepool {

struct BadRow {
  SampleId tid;
  std::string why;  // without the name of the sample
};

TP_FIELDS(BadRow, tid, why)

// So many are named at once. A batch with more is tried again without these, and names others.
inline constexpr size_t kMostBadRows = 256;
inline constexpr size_t kBadRowWords = 500;  // bytes of `why`

}  // namespace tidepool
