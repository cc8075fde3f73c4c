#include "workers/net/messages.h"

#include <cmath>

namespace tidepool::workers {

void TokenRecord::Append(const TokenRecord& more) {
  if (!more.fragment.empty()) {  // it comes whole
    *this = more;
    return;
  }
  if (log_kept.empty() && !more.log_kept.empty()) log_kept.assign(ids.size(), 0.0F);
  const bool pad = more.log_kept.empty() && !log_kept.empty();
  ids.insert(ids.end(), more.ids.begin(), more.ids.end());
  logprobs.insert(logprobs.end(), more.logprobs.begin(), more.logprobs.end());
  if (pad) {
    log_kept.resize(ids.size(), 0.0F);
  } else {
    log_kept.insert(log_kept.end(), more.log_kept.begin(), more.log_kept.end());
  }
  routing += more.routing;
  turns.insert(turns.end(), more.turns.begin(), more.turns.end());
  for (const auto& [version, count] : more.versions) {
    if (!versions.empty() && versions.back().first == version) {
      versions.back().second += count;
    } else if (count > 0) {
      versions.emplace_back(version, count);
    }
  }
}

int64_t CountTurns(const std::vector<uint8_t>& loss_mask) {
  if (loss_mask.empty()) return 1;
  int64_t turns = 0;
  for (size_t i = 0; i < loss_mask.size(); ++i)
    turns += loss_mask[i] != 0 && (i == 0 || loss_mask[i - 1] == 0) ? 1 : 0;
  return turns;
}

Status TokenRecord::Check(int64_t vocab_size) const {
  int64_t covered = 0;
  for (const auto& [version, count] : versions) {
    if (!version.valid() || count <= 0) return InvalidArgument("token record: a version run is not valid");
    covered += count;
  }
  if (logprobs.size() != ids.size() || covered != size() ||
      (!log_kept.empty() && log_kept.size() != ids.size())) {
    return InvalidArgument("token record: " + std::to_string(ids.size()) + " ids, " +
                           std::to_string(logprobs.size()) + " log-probs, " +
                           std::to_string(log_kept.size()) + " kept masses and " + std::to_string(covered) +
                           " versions should be of one length");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidArgument("token record: id " + std::to_string(ids[i]) + " is outside the vocabulary of " +
                             std::to_string(vocab_size));
    }
    // A log-probability is at most 0; 1e-3 leaves room for float32 rounding of a large log-sum-exp.
    if (!std::isfinite(logprobs[i]) || logprobs[i] > 1e-3F) {
      return InvalidArgument("token record: log-prob " + std::to_string(logprobs[i]) + " at token " +
                             std::to_string(i) + " is not one");
    }
    if (!log_kept.empty() && (!std::isfinite(log_kept[i]) || log_kept[i] > 1e-3F)) {
      return InvalidArgument("token record: kept mass at token " + std::to_string(i) +
                             " is not a probability");
    }
  }
  return OkStatus();
}

}  // namespace tidepool::workers
