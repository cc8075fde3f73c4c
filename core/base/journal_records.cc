#include "core/base/journal_records.h"

#include <array>

namespace tidepool {

const char* RecordName(const JournalRecord& r) {
  // In the order of the variant.
  static constexpr std::array<const char*, 35> kNames = {
      "CONFIG",        "ISSUE",     "START",   "END",        "GRADED",      "ENQ",        "DUP",
      "LEASE",         "UNLEASE",   "DROP",    "STEP_BEGIN", "STEP_COMMIT", "STEP_ABORT", "PUBLISH",
      "LOADED",        "ADMIT",     "FENCE",   "JOIN",       "T_BEGIN",     "T_COMMIT",   "T_DONE",
      "T_ROLLED_BACK", "GRANT",     "RELEASE", "QUAR",       "LOST",        "CK_BEGIN",   "CK_COMMIT",
      "CK_REJECT",     "CK_DELETE", "RESTORE", "SNAPSHOT",   "FAULT",       "END_RUN",    "EVAL_RESULT"};
  static_assert(std::variant_size_v<JournalRecord> == kNames.size(), "a name for each kind");
  return kNames[r.index()];
}

bool IsLazy(const JournalRecord& r) {
  return std::holds_alternative<record::Start>(r) || std::holds_alternative<record::End>(r);
}

}  // namespace tidepool
