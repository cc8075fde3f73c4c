#include "core/base/journal_records.h"

#include <array>

namespace tidepool {

const char* Name(EndStatus s) {
  switch (s) {
    case EndStatus::kOk:
      return "ok";
    case EndStatus::kTruncated:
      return "truncated";
    case EndStatus::kCancelled:
      return "cancelled";
    case EndStatus::kWorkerLost:
      return "worker_lost";
    case EndStatus::kError:
      return "error";
  }
  return "unknown";
}

const char* Name(GradeOutcome o) {
  switch (o) {
    case GradeOutcome::kOk:
      return "ok";
    case GradeOutcome::kData:
      return "data";
    case GradeOutcome::kInfra:
      return "infra";
  }
  return "unknown";
}

const char* Name(DropReason r) {
  switch (r) {
    case DropReason::kStale:
      return "stale";
    case DropReason::kDataInvalid:
      return "data_invalid";
    case DropReason::kRewardInfra:
      return "reward_infra";
    case DropReason::kEnvInfra:
      return "env_infra";
    case DropReason::kPoison:
      return "poison";
    case DropReason::kFiltered:
      return "filtered";
    case DropReason::kOverflowPolicy:
      return "overflow_policy";
    case DropReason::kOperator:
      return "operator";
    case DropReason::kLostOnRestore:
      return "lost_on_restore";
  }
  return "unknown";
}

const char* Name(Role r) {
  switch (r) {
    case Role::kNone:
      return "none";
    case Role::kRollout:
      return "rollout";
    case Role::kActor:
      return "actor";
    case Role::kReward:
      return "reward";
    case Role::kEnvironment:
      return "environment";
  }
  return "unknown";
}

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
