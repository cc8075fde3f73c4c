#pragma once
// A row of a batch that cannot be trained on: bytes that are no sample, or a content that fails its checks.
// Who trains says which and why; the scheduler drops its group and trains the others.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/utf8.h"

namespace tidepool {

struct BadRow {
  SampleId tid;
  std::string why;  // without the name of the sample
};

TP_FIELDS(BadRow, tid, why)

// So many are named at once. A batch with more is tried again without these, and names others.
inline constexpr size_t kMostBadRows = 256;
inline constexpr size_t kBadRowWords = 500;  // bytes of `why`

inline std::string BadRowWords(std::string_view why) {
  return std::string(why.size() <= kBadRowWords ? why : why.substr(0, CharacterStart(why, kBadRowWords)));
}
// The first of them, and how many more there are.  requires one
inline std::string Described(const std::vector<BadRow>& bad) {
  return "row " + ToString(bad.front().tid) + ": " + bad.front().why +
         (bad.size() > 1 ? "; and " + std::to_string(bad.size() - 1) + " more rows" : "");
}

}  // namespace tidepool
