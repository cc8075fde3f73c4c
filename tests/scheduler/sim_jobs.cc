// Small jobs for the modelled cluster, and one number for a whole journal.

#include <cmath>

#include "core/base/hash.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

struct Hasher {
  uint64_t h = 1;
  void Add(uint64_t x) { h = Mix64(h ^ x); }
  void operator()(const char*, const std::string& s) { Add(Hash64(s)); }
  void operator()(const char*, const int64_t& x) { Add(static_cast<uint64_t>(x)); }
  void operator()(const char*, const int32_t& x) { Add(static_cast<uint64_t>(x)); }
  void operator()(const char*, const uint64_t& x) { Add(x); }
  void operator()(const char*, const double& x) { Add(static_cast<uint64_t>(std::llround(x * 1e9))); }
  template <typename Tag>
  void operator()(const char*, const StrongId<Tag>& x) {
    Add(static_cast<uint64_t>(x.value));
  }
  void operator()(const char*, const SampleId& t) { Add(SampleUid(t)); }
  void operator()(const char*, const Version& v) {
    Add(static_cast<uint64_t>(v.lineage) * 1000003 + static_cast<uint64_t>(v.number));
  }
  void operator()(const char*, const WorkerRef& w) {
    Add(static_cast<uint64_t>(w.worker.value * 1000003 + w.inc.value));
  }
  void operator()(const char*, const record::TrainedRow& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const record::VersionTokens& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const record::SlotPlan& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const record::EvalScore& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const std::pair<std::string, double>& p) {
    (*this)("", p.first), (*this)("", p.second);
  }
  template <typename T>
  void operator()(const char*, const std::vector<T>& items) {
    Add(items.size());
    for (const T& x : items) (*this)("", x);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(const char*, const E& e) { Add(static_cast<uint64_t>(e)); }
};

}  // namespace

uint64_t HashJournal(const std::vector<JournalEntry>& journal) {
  Hasher h;
  for (const JournalEntry& e : journal) {
    h.Add(e.record.index());
    h.Add(e.ctl_epoch);
    std::visit([&](const auto& r) { record::VisitFields(r, h); }, e.record);
  }
  return h.h;
}

ControllerOptions SmallJob(PlacementKind placement, int64_t slots) {
  ControllerOptions o;
  o.run_id = "run";
  o.config_digest = "digest";
  o.data_rows = 40;
  o.eval.rows = 6;
  ControllerOptions& c = o;
  c.fleet.placement = placement;
  c.fleet.slots = slots;
  c.batch.groups_per_step = 4;
  c.steps = 6;
  c.batch.group_size = 3;
  c.batch.early_columns = true;
  c.rollout.max_new_tokens = 32;
  c.rollout.chunk_tokens = 8;
  c.rollout.max_concurrent = 24;
  c.checkpoint.every_steps = 3;
  c.reward.timeout_s = 5;
  c.fleet.start_timeout_s = 100;
  c.fleet.stall_timeout_s = 120;
  return o;
}

ControllerOptions SmallEpisodes(PlacementKind placement, int64_t slots, int64_t workers) {
  ControllerOptions o = SmallJob(placement, slots);
  o.reward.timeout_s = 15;
  EnvironmentOptions& e = o.environment;
  e.used = true;
  e.workers = workers;
  e.max_turn_tokens = 6;
  e.reset_timeout_s = e.step_timeout_s = 20;
  return o;
}

}  // namespace tidepool::scheduler
