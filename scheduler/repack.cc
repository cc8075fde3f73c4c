#include "scheduler/repack.h"

#include <algorithm>
#include <set>

namespace tidepool::scheduler {
namespace {

int64_t Kv(const RepackEngine& w) {
  int64_t kv = 0;
  for (const RepackSample& s : w.samples) kv += s.kv_tokens + s.left;
  return kv;
}

}  // namespace

std::vector<Move> PlanRepack(std::vector<RepackEngine> engines, const RepackLimits& limits) {
  std::sort(engines.begin(), engines.end(), [](const RepackEngine& a, const RepackEngine& b) {
    const int64_t x = Kv(a), y = Kv(b);
    return x != y ? x < y : a.slot < b.slot;
  });
  const auto most_samples = static_cast<int64_t>(limits.share * static_cast<double>(limits.samples));
  const auto most_kv = static_cast<int64_t>(limits.share * static_cast<double>(limits.kv_tokens));
  std::vector<Move> moves;
  std::set<SlotId> filled;  // took samples: they stay
  for (size_t i = 0; i + 1 < engines.size(); ++i) {
    if (engines[i].samples.empty() || filled.contains(engines[i].slot)) continue;
    std::vector<RepackEngine> tried = engines;
    std::vector<RepackSample> samples = std::move(tried[i].samples);
    tried[i].samples.clear();
    std::sort(samples.begin(), samples.end(), [](const RepackSample& a, const RepackSample& b) {
      const int64_t x = a.kv_tokens + a.left, y = b.kv_tokens + b.left;
      return x != y ? x > y : a.tid < b.tid;
    });
    std::vector<Move> found;
    for (const RepackSample& s : samples) {
      RepackEngine* best = nullptr;
      for (size_t j = i + 1; j < tried.size(); ++j) {
        RepackEngine& w = tried[j];
        if (w.samples.empty() || static_cast<int64_t>(w.samples.size()) + 1 > most_samples) continue;
        if (limits.kv_tokens > 0 && Kv(w) + s.kv_tokens + s.left > most_kv) continue;
        if (best == nullptr || Kv(w) > Kv(*best)) best = &w;
      }
      if (best == nullptr) break;
      best->samples.push_back(s);
      found.push_back({s.tid, engines[i].slot, best->slot});
    }
    if (found.size() < samples.size()) continue;
    engines = std::move(tried);
    for (const Move& m : found) filled.insert(m.to);
    moves.insert(moves.end(), found.begin(), found.end());
  }
  return moves;
}

}  // namespace tidepool::scheduler
