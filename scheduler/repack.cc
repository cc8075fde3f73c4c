#include "scheduler/repack.h"

#include <algorithm>
#include <set>

namespace tidepool::scheduler {
namespace {

int64_t Kv(const RepackWorker& w) {
  int64_t kv = 0;
  for (const RepackSample& s : w.samples) kv += s.kv_tokens + s.left;
  return kv;
}

}  // namespace

std::vector<Move> PlanRepack(std::vector<RepackWorker> workers, const RepackLimits& limits) {
  std::sort(workers.begin(), workers.end(), [](const RepackWorker& a, const RepackWorker& b) {
    const int64_t x = Kv(a), y = Kv(b);
    return x != y ? x < y : a.id < b.id;
  });
  const auto most_samples = static_cast<int64_t>(limits.share * static_cast<double>(limits.samples));
  const auto most_kv = static_cast<int64_t>(limits.share * static_cast<double>(limits.kv_tokens));
  std::vector<Move> moves;
  std::set<WorkerId> filled;  // took samples: they stay
  for (size_t i = 0; i + 1 < workers.size(); ++i) {
    if (workers[i].samples.empty() || filled.contains(workers[i].id)) continue;
    std::vector<RepackWorker> tried = workers;
    std::vector<RepackSample> samples = std::move(tried[i].samples);
    tried[i].samples.clear();
    std::sort(samples.begin(), samples.end(), [](const RepackSample& a, const RepackSample& b) {
      const int64_t x = a.kv_tokens + a.left, y = b.kv_tokens + b.left;
      return x != y ? x > y : a.tid < b.tid;
    });
    std::vector<Move> found;
    for (const RepackSample& s : samples) {
      RepackWorker* best = nullptr;
      for (size_t j = i + 1; j < tried.size(); ++j) {
        RepackWorker& w = tried[j];
        if (w.samples.empty() || static_cast<int64_t>(w.samples.size()) + 1 > most_samples) continue;
        if (limits.kv_tokens > 0 && Kv(w) + s.kv_tokens + s.left > most_kv) continue;
        if (best == nullptr || Kv(w) > Kv(*best)) best = &w;
      }
      if (best == nullptr) break;
      best->samples.push_back(s);
      found.push_back({s.tid, workers[i].id, best->id});
    }
    if (found.size() < samples.size()) continue;
    workers = std::move(tried);
    for (const Move& m : found) filled.insert(m.to);
    moves.insert(moves.end(), found.begin(), found.end());
  }
  return moves;
}

}  // namespace tidepool::scheduler
