#include "workers/device/held_tokens.h"

namespace tidepool::workers {

void HeldTokens::Begin(const SampleId& tid, int32_t att, GroupId gid, int64_t generated) {
  if (!on_) return;
  const std::lock_guard lock(mu_);
  Sample& h = samples_[{tid, att}];
  if (h.from + h.tokens.size() != generated) h = Sample{gid, generated, att, {}, true};
  h.gid = gid;
  h.running = true;
}

void HeldTokens::Append(const up::ChunkDelta& delta) {
  if (!on_) return;
  const std::lock_guard lock(mu_);
  const auto it = samples_.find({delta.tid, delta.att});
  if (it == samples_.end()) return;
  it->second.tokens.Append(delta.tokens);
  if (delta.ended) it->second.running = false;
}

void HeldTokens::Forget(GroupId gid) {
  const std::lock_guard lock(mu_);
  std::erase_if(samples_, [&](const auto& item) { return item.second.gid == gid; });
}

std::vector<up::Held> HeldTokens::All() const {
  std::vector<up::Held> out;
  const std::lock_guard lock(mu_);
  for (const auto& [key, h] : samples_) {
    if (h.from == 0 && h.running) out.push_back({key.first, key.second, h.tokens});
  }
  return out;
}

}  // namespace tidepool::workers
